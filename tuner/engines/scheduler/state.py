"""The arrays of records that the scheduler model changes in place. Times are seconds."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.engines.seam import ITERATION, IterationLog, columns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Record = Any
"""One row: in compiled code its fields are attributes."""

Records = NDArray[Any]

REQUEST = columns(
    queued_s="f8",  # when it reaches the scheduler
    input_length="i8",
    output_length="i8",
    status="i8",
    computed="i8",
    generated="i8",
    scheduled="i8",  # tokens that the iteration in flight computes
    blocks="i8",
    scheduled_s="f8",  # first time in RUNNING, or NaN
    first_token_s="f8",  # noqa: S106 - a time
    last_token_s="f8",  # noqa: S106
    preemptions="i8",
    lost="i8",  # tokens computed before the last preemption
    lost_at="i8",  # given_blocks then
)
"""One row per request, in the order in which they reach the scheduler."""

STATE = columns(
    now="f8",
    end="f8",  # of the iteration in flight
    in_flight="i8",
    max_num_seqs="i8",
    max_num_batched_tokens="i8",
    block_size="i8",
    kv_blocks="i8",
    free_blocks="i8",
    running="i8",
    waiting="i8",
    head="i8",  # place in queue of the first that waits
    rows="i8",
    arrived="i8",  # rows before this one have reached the scheduler
    async_scheduling="i8",  # 1: the next iteration is scheduled while one is computed
    seen_s="f8",  # then: who reached the scheduler by this time is known to it
    prefix_caching="i8",  # 1: a preempted request may find its blocks again
    reserves_prompts="i8",  # 1: a request is let in where all of its prompt has room
    given_blocks="i8",  # how often a block was given to a request
    finished="i8",  # of those in running: their last token came while scheduling ahead
    gone="i8",  # of those, preempted in the iteration that is being scheduled
    blocked="i8",  # 1: nobody is let in until blocks come free
    jitter="i8",  # how much of the noise and of the buffers is used
    stall="i8",
    logged="i8",
    tokens="i8",
    recomputed_tokens="i8",  # totals from here on
    most_blocks="i8",
    most_running="i8",
    busy_s="f8",
    block_s="f8",  # blocks in use x seconds
)
"""The scheduler: one record."""

FOREVER = 2**62
NEVER = np.inf
COMING, WAITING, RUNNING, FINISHED, ABORTED = range(5)
"""A request's status."""

REACHED, DONE, FULL = range(3)
"""Reasons for which `advance` comes back: the time asked for is reached or nothing is left to do; a
request finished; the log or the token list is full."""


class StepLaw(NamedTuple):
    """The time of an iteration in seconds: f(n) + c·P + c2·P² + p0·p + d·X + e·Y.

    n decode sequences with X tokens of context; p prefill sequences with P tokens, and Y the sum of
    tokens times tokens computed before. All are columns of ``ITERATION``. ``twin.law`` fits it.
    """

    decode_s: Floats  # f(n) for n = 0, 1, 2, … decode sequences
    prefill_token_s: float  # c
    prefill_token_squared_s: float  # c2
    prefill_seq_s: float  # p0
    context_token_s: float  # d
    prefill_context_s: float = 0.0  # e

    def durations_s(self, log: IterationLog) -> Floats:
        """Return how long these iterations should have taken."""
        prefill, decode_seqs = log["prefill_tokens"].astype(float), log["decode_seqs"]
        return np.asarray(
            self.up_to(int(decode_seqs.max(initial=0))).decode_s[decode_seqs]
            + self.prefill_token_s * prefill
            + self.prefill_token_squared_s * prefill**2
            + self.prefill_seq_s * log["prefill_seqs"]
            + self.context_token_s * log["context_tokens"]
            + self.prefill_context_s * log["prefill_context"]
        )

    def up_to(self, max_num_seqs: int) -> "StepLaw":
        """Return the law tabulated up to so many sequences at least; beyond its table it rises as
        at its end."""
        missing = max_num_seqs + 1 - len(self.decode_s)
        if missing <= 0:
            return self
        slope_s = np.diff(self.decode_s, prepend=self.decode_s[0])[-1]
        more_s = self.decode_s[-1] + slope_s * np.arange(1, missing + 1)
        return self._replace(decode_s=np.concatenate((self.decode_s, more_s)))

    def slowed(self, factor: float) -> "StepLaw":
        """Return the law of a machine that takes so many times as long for everything."""
        decode_s, *rest = self
        return StepLaw(factor * decode_s, *(factor * each for each in rest))


class Noise(NamedTuple):
    """Factors that make iterations slower or faster than the law. Arrays of length 0 mean: none."""

    jitter: Floats  # one factor per iteration, over and over
    slowdown: Floats  # factor by time, on a grid from 0 on; afterwards as at its end
    grid_s: float
    stall_at_s: Floats  # ascending, closed by inf
    stall_s: Floats


class Tokens(NamedTuple):
    """Tokens in the order in which they came out. Length 0: not wanted."""

    row: Ints
    at_s: Floats


class Scheduler(NamedTuple):
    """Everything that `advance` changes."""

    state: Records  # one STATE
    requests: Records  # REQUEST, one or more
    queue: Ints  # rows in the order in which they wait: ``waiting`` of them from ``head`` on
    running: Ints  # rows in the order of admission
    iteration: Records  # one ITERATION: the one in flight
    log: IterationLog  # length 0: not wanted
    tokens: Tokens


NO_NOISE = Noise(np.ones(0), np.ones(0), 1.0, np.array([np.inf]), np.zeros(1))


def new_scheduler(
    *, rows: int, log_length: int = 0, token_length: int = 0, **limits: int
) -> Scheduler:
    """Return an empty scheduler with room for ``rows`` requests; ``limits`` by the names of
    STATE."""
    state = np.zeros(1, STATE)
    for name, value in limits.items():
        state[name] = value
    state["free_blocks"] = limits["kv_blocks"]
    return Scheduler(
        state=state,
        requests=np.zeros(rows, REQUEST),
        queue=np.zeros(rows, np.int64),
        running=np.zeros(limits["max_num_seqs"], np.int64),
        iteration=np.zeros(1, ITERATION),
        log=np.zeros(log_length, ITERATION),
        tokens=Tokens(np.zeros(token_length, np.int64), np.zeros(token_length)),
    )


def new_requests(
    queued_s: Floats | float,
    input_length: Ints | int,
    output_length: Ints | int,
    cached_length: Ints | int = 0,
) -> Records:
    """Return requests that have not reached the scheduler yet: an array, of one for scalars.

    ``cached_length``: prompt tokens found in the prefix cache when they are first scheduled.
    """
    requests = np.zeros(np.size(queued_s), REQUEST)
    requests["computed"] = cached_length
    requests["queued_s"] = queued_s
    requests["input_length"] = input_length
    requests["output_length"] = output_length
    requests[["scheduled_s", "first_token_s", "last_token_s"]] = np.nan
    return requests
