"""A server of vLLM's in a file: its arguments, and where in the text they stand. Types only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tuner.engines.arguments import ArgumentValue

Arguments = Mapping[str, ArgumentValue]
"""Arguments by vLLM's names; one that is not known keeps its own spelling."""

Span = tuple[int, int]
Near = Callable[[str], str | None]
"""Returns the content of the file of this name in the same folder; None where there is none."""

Chart = Literal["", "own", "stack", "kwargs"]
"""What keys mean: vllm serve's config, a chart's own values, those of vLLM's production stack, or
arguments of Python's."""


class UnreadableError(Exception):
    """What cannot be read or edited safely; ``near`` is a part of it, as it is spelled."""

    def __init__(self, why: str, near: str = "") -> None:
        super().__init__(why)
        self.near = near


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server of vLLM's."""

    name: str
    """For ``--container``."""

    arguments: Arguments = field(default_factory=dict)
    spans: Sequence[Span] = ()
    """Where in the text its words, keys and variables stand: an edit leaves all else alone."""

    rest: object = ()
    """What else stands there: an edit leaves it alone too."""

    words: Sequence[str] = ()
    is_keyed: bool = False
    """Whether its arguments are keys; ``words`` are then those of an ``extraArgs`` among them."""

    problem: str = ""
    """Why it cannot be read or edited."""

    near: str = ""
    """What the problem is about, as it is spelled in the text."""

    image: str = ""
    chart: Chart = ""
