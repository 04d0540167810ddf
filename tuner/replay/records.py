"""The records of one whole replay: a row for each request that was sent; and of a probe. Pure.

Times are seconds from the start of the replay on the event loop's clock, unless said otherwise.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tuner.engines.seam import IterationLog
from tuner.traffic.slo import Slo

DEVICE = np.dtype(
    [
        ("utilisation", "f8"),  # share of time busy: mean of the GPUs, or of all CPU cores
        ("memory_bytes", "f8"),  # in use on all GPUs together
        ("power_w", "f8"),  # of all GPUs together
        ("others", "f8"),  # share of the CPU cores that other processes took
        ("steal", "f8"),  # share of them that the hypervisor gave to other machines
        ("clock_mhz", "f8"),  # mean of the GPUs that are busy and not at their power limit
        ("throttled", "f8"),  # share of the GPUs that heat, a fault or a power brake slowed down
        ("foreign", "f8"),  # share of the GPUs on which processes of others computed
    ]
)
"""One reading of the device, over the time since the one before; NaN where it does not tell."""

DeviceLog = NDArray[np.void]
"""A one-dimensional array of DEVICE, in order of time; empty where there is no device."""

Outcome = Literal["ok", "aborted", "failed", "cut"]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """The record of one request. Seconds from the start of the replay."""

    row: int
    scored: bool
    input_length: int
    output_length: int
    planned_s: float
    sent_s: float
    outcome: Outcome
    end_s: float
    """When it finished, was aborted, failed, or was cut."""

    output_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    tpot_s: float | None = None
    """(last - first output) / (tokens - 1) as its client saw them; None below two tokens, and
    where they came all at once."""

    engine_tpot_s: float | None = None
    """The same by the engine's own times; None where it does not tell them."""

    engine_queued_s: float | None = None
    """When the engine's scheduler got it. This and the next two by the engine's own times; None
    where it does not tell them, and of several sequences."""

    engine_first_s: float | None = None
    engine_last_s: float | None = None
    itl_s: tuple[float, ...] = ()
    """Gaps between successive outputs as the client saw them."""

    queue_s: float | None = None
    cached_tokens: int | None = None
    """This and the next: None where the engine does not tell."""

    preemptions: int | None = None
    merged_outputs: int = 0
    late_outputs: int | None = None
    """None of an older tuner."""

    transfer_s: float | None = None
    """What a queue to and from the engine took; None without one."""

    held_s: float | None = None
    """Kept after its last token until its batch was done; None where replies are streamed."""

    error: str | None = None

    @property
    def lag_s(self) -> float:
        return self.sent_s - self.planned_s

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.planned_s

    @property
    def e2el_s(self) -> float | None:
        return None if self.last_token_s is None else self.last_token_s - self.planned_s

    def meets(self, slo: Slo) -> bool:
        """Whether it met the SLO. A failed or cut request did not; an aborted one did when nothing
        that it saw before its abort had broken a limit."""
        if self.outcome in {"failed", "cut"}:
            return False
        e2el_s = self.e2el_s if self.e2el_s is not None else self.end_s - self.planned_s
        ttft_s = self.ttft_s if self.ttft_s is not None else self.end_s - self.planned_s
        return slo.met_by(
            input_length=self.input_length, ttft_s=ttft_s, tpot_s=self.tpot_s, e2el_s=e2el_s
        )


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One unloaded request; times in seconds."""

    input_length: int
    ttft_s: float
    tpot_s: float | None
    output_tokens: int = 0
    passage_s: tuple[float, ...] = ()
    """When it was sent, reached the engine's scheduler, had its first and its last token in the
    engine, and its first and its last at its client; empty where the engine does not tell."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One window of the trace, replayed once at one cap."""

    max_num_seqs: int
    scored_from_s: float
    window_s: float
    """Length of the scored part of the plan."""

    elapsed_s: float
    records: tuple[RequestRecord, ...]
    iterations: IterationLog
    """Times from the start of the replay, like the records'."""

    kv_blocks: int
    token_budget: int = 0
    """Tokens that an iteration may compute at most; 0 where an older tuner did not keep it."""

    device: DeviceLog = field(default_factory=lambda: np.zeros(0, DEVICE))
    cut: str | None = None
    """Why the rest was not replayed; None when it was."""

    ruled_out: bool = False
    """Cut because arithmetic had ruled the cap out beforehand, whatever the machine did."""

    unsent: int = 0
    """Scored requests that a cut kept from being sent."""

    attainment_bound: float = 1.0
    """The most that this cap could attain: by what was certain when it was cut, or by arithmetic
    beforehand (``traffic.workload.littles_bound``)."""

    slo: Slo | None = None
    """The SLO by which it was cut, and that its bound is of. None where an older tuner did not keep
    it."""

    flaws: tuple[str, ...] = ()
    """What else than the engine shaped its numbers, as ``replay.soundness`` saw it."""

    start_s: float = 0.0
    """When it began, on the clock of all replays of a run."""

    weight: float = 1.0
    """Requests of the trace that one of its requests stands for."""

    def is_cut_under_another(self, slo: Slo) -> bool:
        """Whether it was cut because of another SLO, so that its bound says nothing of this one."""
        return self.cut is not None and self.slo is not None and not self.slo.is_like(slo)
