"""A server of vLLM's in a file: what it is told, and where in the text that stands. Types only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tuner.rollout.words import Told

Span = tuple[int, int]
Near = Callable[[str], str | None]
"""What is in the file of this name in the same folder; None where there is none."""


class Item(NamedTuple):
    """A word of a list, or the value behind a key."""

    span: Span
    style: str
    """Its quotes; empty for none."""

    name: str = ""
    key: Span = (0, 0)
    """Where the key stands."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server of vLLM's."""

    name: str
    """For ``--container``."""

    told: Told = field(default_factory=dict)
    proof: str = ""
    """What shows that it is vLLM; empty where nothing does."""

    doubt: str = ""
    """What speaks against it."""

    spans: Sequence[Span] = ()
    """Where in the text its words or keys stand; the first is where new ones go."""

    rest: object = None
    """All else that the file says: an edit must leave it alone."""

    form: Literal["text", "list", "keys"] = "text"
    words: Sequence[str] = ()
    items: Sequence[Item] = ()
    is_flow: bool = False
    """Whether the list or the keys stand in brackets."""

    variables: Mapping[str, Span] = field(default_factory=dict)
    """Variables that the file sets for it → where their values stand."""

    problem: str = ""
    """Why it cannot be read or edited."""

    near: str = ""
    """What the problem is about, as it is spelt in the text."""

    image: str = ""
    is_chart: bool = False
    """Whether a chart decides what its keys mean."""

    extra: "Server | None" = None
    """Of a chart: the list for flags that have no key."""

    inner: "tuple[Span, str, Server] | None" = None
    """A file within the file: its block, its indentation, and the server in it."""
