"""The one seam between tuner and whatever serves requests. Types only.

An engine is started once, at the largest ``max_num_seqs`` that will be asked of it; its admission
cap then changes live, while it is idle. Every time is in seconds on the running event loop's clock
(``loop.time()``), whatever the engine: the real one on the machine's monotonic clock, the simulated
one on virtual time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tuner.engines.arguments import ArgumentValue as ArgumentValue  # noqa: PLC0414 - re-exported
from tuner.errors import EngineError


def columns(**types: str) -> np.dtype[np.void]:
    """Return the dtype of a row of these columns."""
    return np.dtype([*types.items()])


ITERATION = columns(
    start_s="f8",  # the end of the one before or, after idling, when it was scheduled
    duration_s="f8",  # until its tokens were out
    decode_seqs="i4",  # sequences whose newest token went in, for one more
    prefill_seqs="i4",  # sequences of which others were computed: prompts, or once more
    prefill_tokens="i4",
    context_tokens="i8",  # tokens already computed of the sequences in decode_seqs
    running="i4",  # in RUNNING after scheduling
    waiting="i4",
    kv_blocks_used="i4",
    preemptions="i4",
    recomputed_tokens="i4",  # computed tokens that the preempted sequences lost
    cached_tokens="i4",  # of sequences let in, tokens found in the prefix cache
    prefill_context="i8",  # of those in prefill_seqs, tokens x tokens computed before
)
"""One engine iteration: the raw material of decode time by batch size, and of the step-time law."""

UNKNOWN = -1
"""Of a count that an engine does not report."""

IterationLog = NDArray[np.void]
"""A one-dimensional array of ITERATION, in order of time. They tile the busy time; idle time has
no entry."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The facts that a started engine tells of itself."""

    engine: str
    """``vllm``, ``serve`` (the same behind a server), ``server`` (somebody's) or ``sim``."""

    arguments: Mapping[str, ArgumentValue]
    """Every engine argument that was pinned, by vLLM's name, as resolved."""

    max_model_len: int
    """Most tokens of prompt plus output of one request."""

    vocab_size: int
    block_size: int
    kv_blocks: int
    start_s: float
    """How long the start took, in seconds."""

    versions: Mapping[str, str]
    """Package → version."""

    device: Mapping[str, ArgumentValue]
    """Name, memory, driver, and what else identifies the hardware."""

    sampling: Mapping[str, float] | None = None
    """The sampling by which it drew tokens, by vLLM's names. None where it drew none."""

    environment: Mapping[str, str] | None = None
    """The variables that change how it computes; None where it does not tell."""

    cautions: Sequence[str] = ()
    """Warnings about whatever this engine shows."""

    unmodelled: Sequence[str] = ()
    """What it does that the model of vLLM's scheduler does not: replays decide, not the twin."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens that an iteration may compute at most; 0 where that is not pinned."""
        return int(str(self.arguments.get("max_num_batched_tokens", 0)))

    @property
    def is_served(self) -> bool:
        """Whether its requests come through the front end of a server of ours."""
        return self.engine == "serve"

    def check_limits(
        self, max_num_seqs: int | None, max_num_batched_tokens: int | None, *, in_flight: int
    ) -> None:
        """Raise EngineError for limits that were not built for, and while requests are in flight.
        None leaves a limit as it is."""
        if in_flight:
            raise EngineError(
                f"the limits cannot change: {in_flight} requests are in flight",
                hint="Let the replay drain first.",
            )
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
        for name, value in limits.items():
            most = int(str(self.arguments[name]))
            if value is not None and not 1 <= value <= most:
                raise EngineError(
                    f"{name} {value} is not between 1 and {most}",
                    hint="Start the engine with the largest value that will be asked of it.",
                )

    def check_length(self, request: "EngineRequest") -> None:
        """Raise RequestFailedError for what vLLM would refuse, or cut short without a word."""
        prompt, output = len(request.prompt_token_ids), request.output_length
        if min(prompt, output) < 1 or prompt + output > self.max_model_len:
            raise RequestFailedError(
                f"{prompt} prompt and {output} output tokens: at least one of each, and no more "
                f"than max_model_len, {self.max_model_len}, together"
            )


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as an engine takes it: exactly ``output_length`` tokens are generated."""

    prompt_token_ids: Sequence[int]
    output_length: int
    priority: int = 0


@dataclass(slots=True)
class Reply:
    """The part of one answer that has come so far.

    The engine fills it while it generates; what only its log knows, when the iterations are taken.
    """

    sent_s: float = math.nan
    """When it left: set by whoever calls ``generate``, and by an engine that knows better."""

    output_tokens: int = 0
    seen_s: list[float] = field(default_factory=list)
    """When the client saw something come: the token of one iteration or, read late, of several."""

    queued_s: float = math.nan
    """When its scheduler got the request, and when it was scheduled first; this and the next three
    by the engine's own clock, NaN where it does not report them."""

    scheduled_s: float = math.nan
    first_s: float = math.nan
    last_s: float = math.nan
    cached_tokens: int = UNKNOWN


class Engine(Protocol):
    """A started engine. Every method may raise EngineError."""

    @property
    def facts(self) -> EngineFacts: ...

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        """Generate, filling ``reply``; return after the last token. Cancelling aborts the request.

        Raises RequestFailedError when this request alone failed; EngineError when the engine did.
        """
        ...

    async def prepare(
        self, *, max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None
    ) -> None:
        """Wait until it is idle, set the limits, each at most what it was built for, and forget
        every cached prefix and all iterations. None leaves a limit as it is.

        Raises EngineError when requests are in flight or a value is out of range.
        """
        ...

    async def iterations(self) -> IterationLog:
        """Return the iterations since the last call, and forget them; complete the replies of the
        requests that have finished since."""
        ...

    async def stop(self) -> None:
        """Stop; leave no process behind. Stopping twice is allowed."""
        ...


class Starter(Protocol):
    """Starts engines of one kind: ``vllm`` with a model, ``sim`` with a world."""

    def resolve(self, *, max_num_seqs: int) -> Mapping[str, ArgumentValue]:
        """Return all engine arguments, pinned, without starting anything.

        Raises InputError or EngineError for what the engine would refuse.
        """
        ...

    async def start(self, *, max_num_seqs: int) -> Engine: ...


class RequestFailedError(EngineError):
    """One request failed and the engine lives on: of a replay it is data."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="Try the engine arguments with vllm serve first.")


STOPPED = EngineError("the engine is stopped", hint="Start another one.")
