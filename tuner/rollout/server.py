"""A server of vLLM's in a file: its arguments, and where in the text they stand. Types only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tuner.engines.arguments import ArgumentValue

Arguments = Mapping[str, ArgumentValue]
"""Arguments by vLLM's names; one that is not known keeps its own spelling."""

Span = tuple[int, int]
Near = Callable[[str], str | None]
"""Returns the content of the file of this name in the same folder; None where there is none."""


class End(NamedTuple):
    """A text, a list or a mapping to which arguments may be added."""

    form: Literal["text", "list", "keys"]
    span: Span
    is_flow: bool = False
    """In brackets."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server of vLLM's."""

    name: str
    """For ``--container``."""

    arguments: Arguments = field(default_factory=dict)
    proof: str = ""
    """What shows that it is vLLM; empty where nothing does."""

    doubt: str = ""
    """What speaks against it."""

    spans: Sequence[Span] = ()
    """Where in the text its words, keys and variables stand."""

    ends: Sequence[End] = ()
    rest: Callable[[], object] = lambda: None
    """Returns all else that the file says: an edit must leave it alone."""

    words: Sequence[str] = ()
    variables: Mapping[str, Span] = field(default_factory=dict)
    """Variables that a YAML file sets for it → where their values stand."""

    problem: str = ""
    """Why it cannot be read or edited."""

    near: str = ""
    """What the problem is about, as it is spelt in the text."""

    image: str = ""
    is_chart: bool = False
    """Whether a chart decides what its keys mean."""

    inner: "tuple[Span, str, Server] | None" = None
    """A file within the file: its block, its indentation, and the server in it."""
