"""An approach of ``tuner compare``, its testbed, and the limits of its workers. Pure."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from tuner.engines.seam import Engine
from tuner.errors import EngineError


@dataclass(frozen=True, slots=True)
class Batching:
    """A worker's batches: of ``size`` requests, or of what came within ``wait_s`` of the first.

    All replies of a batch leave when the slowest is done.
    """

    size: int = 1
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Setup:
    """The user's settings of the approaches."""

    tuned: int
    """The ``max_num_seqs`` that was found."""

    static: Batching
    untuned: int
    of_profile: int | None
    """The profile's own ``max_num_seqs``; None without a profile."""


class Testbed(Protocol):
    """A machine on which approaches are built: a real one with vLLM, or a simulated one.

    Every engine that it starts has the whole device to itself. All may raise EngineError.
    """

    async def continuous(self, *, max_num_seqs: int, of_profile: bool = False) -> Engine:
        """Start an engine that batches continuously, with the base's other arguments or the
        profile's."""
        ...

    async def served(self, *, max_num_seqs: int) -> Engine:
        """Start one with the base's other arguments behind ``vllm serve``, asked as users ask."""
        ...

    async def workers(self, count: int, batching: Batching) -> Engine:
        """Start worker processes behind queues, each with a synchronous engine and its share of
        the memory."""
        ...


class FixedLimits:
    """The limits of workers: those that they started with."""

    async def set_limits(self, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        raise EngineError(
            f"workers keep their limits: max_num_seqs={max_num_seqs}, "
            f"max_num_batched_tokens={max_num_batched_tokens} refused",
            hint="Start other workers.",
        )


@dataclass(frozen=True, slots=True)
class Approach:
    name: str
    title: str
    start: Callable[[Testbed, Setup], Awaitable[Engine]]
