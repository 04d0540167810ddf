"""What one replay showed: an array with a row for each request, and the engine's iterations. Pure.

Times are seconds from the start of the replay on the event loop's clock, unless noted otherwise.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tuner.engines.seam import IterationLog, columns
from tuner.traffic.slo import Slo

REQUEST = columns(
    row="i8",  # of the trace
    scored="?",  # False in the run-in: sent, but not counted
    input_length="i8",
    output_length="i8",  # requested
    planned_s="f8",  # when it had to leave: latency counts from here
    sent_s="f8",
    first_s="f8",  # the client saw the first token
    last_s="f8",  # the client saw the last token; NaN unless it finished
    end_s="f8",  # it finished, was aborted, failed, or was cut
    outcome="U7",  # ok, aborted, failed or cut
    output_tokens="i8",  # that came
    tpot_s="f8",  # (last - first output) / (tokens - 1) as the client saw them
    queued_s="f8",  # the engine's scheduler got it; this and the next three: by the engine
    scheduled_s="f8",
    engine_first_s="f8",
    engine_last_s="f8",
    cached_tokens="i8",  # of its prompt, or UNKNOWN
    gaps="i8",  # of ``Replay.gaps_s``
)
"""One request. A time that does not exist, or that nobody reports, is NaN."""

DEVICE = columns(
    utilisation="f8",  # share of time busy: mean of the GPUs, or of all CPU cores
    memory_bytes="f8",  # in use on all GPUs together
    power_w="f8",  # of all GPUs together
    others="f8",  # share of the CPU cores that other processes took
    steal="f8",  # share of them that the hypervisor gave to other machines
    clock_mhz="f8",  # mean of the GPUs that are busy and not at their power limit
    throttled="f8",  # share of the GPUs that heat, a fault or a power brake slowed down
    foreign="f8",  # share of the GPUs on which processes of others computed
)
"""One reading of the device, over the time since the previous one; NaN where it reports nothing."""

Requests = NDArray[np.void]
"""A one-dimensional array of REQUEST, by planned time."""

DeviceLog = NDArray[np.void]
"""A one-dimensional array of DEVICE, in order of time; empty without a device."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def ttft_s(requests: Requests) -> Floats:
    """Return the times to first token; NaN for requests without one."""
    return np.asarray(requests["first_s"] - requests["planned_s"])


def e2el_s(requests: Requests) -> Floats:
    """Return the end-to-end latencies; NaN for requests that did not finish."""
    return np.asarray(requests["last_s"] - requests["planned_s"])


def queue_s(requests: Requests) -> Floats:
    """Return how long the scheduler let requests wait; NaN where the engine does not report it."""
    return np.asarray(requests["scheduled_s"] - requests["queued_s"])


def met(requests: Requests, slo: Slo) -> Bools:
    """Return which requests met the SLO.

    A failed or cut request did not. An aborted one did when nothing that its client saw before the
    abort had broken a limit. A reply of one token has no TPOT to break.
    """
    return np.isin(requests["outcome"], ("ok", "aborted")) & ~broken(requests, slo)


def broken(requests: Requests, slo: Slo) -> Bools:
    """Return which requests had broken a limit by their end, whatever became of them."""
    spent_s = requests["end_s"] - requests["planned_s"]
    first_s, e2e_s = ttft_s(requests), e2el_s(requests)
    return np.asarray(
        slo.broken_by(
            requests["input_length"],
            np.where(np.isnan(first_s), spent_s, first_s),
            requests["tpot_s"],
            np.where(np.isnan(e2e_s), spent_s, e2e_s),
        )
    )


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One request on an idle engine; times in seconds."""

    input_length: int
    ttft_s: float
    tpot_s: float | None
    output_tokens: int = 0
    passage_s: tuple[float, ...] = ()
    """When it was sent, reached the engine's scheduler, had its first and its last token in the
    engine, and its first and its last at its client; empty where the engine does not report it."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One window of the trace, replayed once at one cap."""

    max_num_seqs: int
    scored_from_s: float
    window_s: float
    """Length of the scored part of the plan."""

    elapsed_s: float
    iterations: IterationLog
    """Times from the start of the replay, as in ``requests``."""

    kv_blocks: int
    requests: Requests = field(default_factory=lambda: np.zeros(0, REQUEST))
    """Empty for a ramp, which is made for its iterations alone."""

    gaps_s: Floats = field(default_factory=lambda: np.zeros(0))
    """Gaps between successive outputs as clients saw them, request by request."""

    token_budget: int = 0
    """Tokens that an iteration may compute at most; 0 where that is not known."""

    device: DeviceLog = field(default_factory=lambda: np.zeros(0, DEVICE))
    failures: tuple[str, ...] = ()
    """Why requests failed: each reason once."""

    cut: str | None = None
    """Why the rest was not replayed; None when it was."""

    unsent: int = 0
    """Scored requests that a cut kept from being sent."""

    attainment_bound: float = 1.0
    """The most that this cap could attain, by what was certain when it was cut."""

    slo: Slo | None = None
    """The SLO by which it was cut, and that its bound is of."""

    flaws: tuple[str, ...] = ()
    """What besides the engine shaped its numbers: see ``replay.soundness``."""

    start_s: float = 0.0
    """When it began, on the clock of all replays of a run."""

    def is_cut_under_another(self, slo: Slo) -> bool:
        """Whether it was cut because of another SLO, so that its bound says nothing of this one."""
        return self.cut is not None and self.slo is not None and str(self.slo) != str(slo)
