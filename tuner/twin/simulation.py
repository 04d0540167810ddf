"""The twin: a whole trace through the scheduler model, in compiled code. Pure.

It stands for the engine once its step-time law is known (``twin.law``): what every request
would have seen at any cap and any load.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.engines.scheduler.state import (
    ABORTED,
    FINISHED,
    FULL,
    NO_NOISE,
    Floats,
    Ints,
    StepLaw,
    new_requests,
    new_scheduler,
)
from tuner.engines.seam import EngineFacts, IterationLog
from tuner.replay.records import REQUEST, Requests
from tuner.system.files import refuse_config_of_folder
from tuner.trace.trace import TraceRequest
from tuner.traffic.window import is_served

refuse_config_of_folder()  # here, and not where numba is loaded: before anything is measured

LOG_LENGTH = 8192
"""Iterations that are logged at a time: more than most windows have. Clearing the memory of many
more takes longer than simulating them."""

FAR_S = 1e7
"""Before and after what is known of a machine's speed: four months."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Sequences to generate, in order of arrival: arrays of one length."""

    arrival_s: Floats
    input_length: Ints
    output_length: Ints
    cached_length: Ints
    """Prompt tokens that the prefix cache holds when the request is scheduled."""

    @classmethod
    def of(cls, requests: Iterable[tuple[float, ...]]) -> "Traffic":
        """Return traffic of (arrival s, input length, output length[, cached length])."""
        rows = sorted((*request, 0)[:4] for request in requests)
        arrival_s, *lengths = np.array(rows, float).reshape(-1, 4).T
        return cls(arrival_s, *(each.astype(np.int64) for each in lengths))

    def __len__(self) -> int:
        return self.arrival_s.size

    def rows(self, chosen: slice | Ints) -> "Traffic":
        return Traffic(*(column[chosen] for column in self.columns()))

    def columns(self) -> tuple[NDArray[Any], ...]:
        return self.arrival_s, self.input_length, self.output_length, self.cached_length


Clock = tuple[Floats, Floats]
"""The same moments on the traffic's clock and on a machine's own, on which every iteration takes
what its law says; both ascending, in seconds."""


def clock_of(times_s: Floats, steps_s: Floats) -> Clock:
    """Return the clock of a machine on which it took these steps between the times on the traffic's
    clock; before and after as at the ends."""
    first_s, last_s = FAR_S * steps_s[[0, -1]] / np.diff(times_s)[[0, -1]]
    steps_s = np.concatenate(([times_s[0] - first_s, first_s], steps_s, [last_s]))
    far_s = np.concatenate(([times_s[0] - FAR_S], times_s, [times_s[-1] + FAR_S]))
    return far_s, np.cumsum(steps_s)


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """What is between users and a server's scheduler (HTTP, tokenizer, detokenizer), as one server
    showed it. The defaults are none at all."""

    contention: float = 1.0
    """How many times as long an iteration takes as without it: it takes CPU from the engine."""

    delay_s: float = 0.0
    """For which a request is under way outside of the engine."""


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The limits of an engine besides ``max_num_seqs``: seen in its facts."""

    max_num_batched_tokens: int
    block_size: int
    kv_blocks: int
    max_model_len: int
    late_release: bool = False
    """Asynchronous scheduling: a request that ends gives its slot free, and one that arrives is
    known, one iteration later."""

    prefix_caching: bool = False
    """A preempted request may find some of its blocks again."""

    lag_s: float = 0.0
    """From sending a request until the scheduler knows it."""

    reserves_prompts: bool = False
    """A request is let in where the KV cache has room for all of its prompt, as vLLM does."""

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.block_size


def shape_of(facts: EngineFacts) -> EngineShape:
    """Return the limits of a started engine."""
    arguments = facts.arguments
    return EngineShape(
        max_num_batched_tokens=facts.max_num_batched_tokens,
        block_size=facts.block_size,
        kv_blocks=facts.kv_blocks,
        max_model_len=facts.max_model_len,
        late_release=bool(arguments.get("async_scheduling")),
        prefix_caching=bool(arguments.get("enable_prefix_caching")),
        reserves_prompts=facts.engine != "sim"
        and arguments.get("scheduler_reserve_full_isl") is not False,
    )


def traffic_of(
    requests: Iterable[TraceRequest], shape: EngineShape, *, hash_block_size: int
) -> Traffic:
    """Return what production served, in order of arrival; one row for each of ``n`` sequences.

    ``hash_block_size`` is the tokens that one hash id stands for. Where the engine has a prefix
    cache, what came before is in it until as many others were computed as it has room for.
    """
    rows = list[tuple[float, int, int, int]]()
    computed, asked_at = 0, dict[int, int]()
    for request in filter(is_served, requests):
        known = 0
        for block in request.hash_ids if shape.prefix_caching else ():
            if block not in asked_at or asked_at[block] < computed - shape.kv_tokens:
                break
            known += hash_block_size
        cached = min(known, request.input_length)
        lengths = request.output_lengths or (request.output_length,) * request.n
        computed += request.input_length - cached + sum(lengths)
        asked_at.update(dict.fromkeys(request.hash_ids, computed))
        for i, length in enumerate(lengths):
            cached = request.input_length if i and shape.prefix_caching else cached
            rows.append((request.arrival_s, request.input_length, max(1, length), cached))
    return Traffic.of(rows)


class TwinReplay(NamedTuple):
    """The twin's account of one replay."""

    requests: Requests
    """In order of arrival; those that the engine would refuse have failed."""

    iterations: IterationLog
    """Empty unless asked for."""

    preemptions: int
    running_peak: int
    kv_usage_mean: float
    """Share of the blocks, over busy time."""

    kv_usage_peak: float


def simulate(  # noqa: PLR0913 - what is replayed, on what, and how much of it is wanted
    traffic: Traffic,
    law: StepLaw,
    shape: EngineShape,
    *,
    max_num_seqs: int,
    clock: Clock | None = None,
    front_end: FrontEnd | None = None,
    log: bool = False,
) -> TwinReplay:
    """Replay all of the traffic at one cap, to its last token, as its clients see it.

    With a log every iteration is run singly, which takes some ten times as long. A machine whose
    speed varies is simulated on its own clock, on which the law holds. ``law`` is that of an engine
    without a front end.
    """
    from tuner.engines.scheduler.model import advance  # noqa: PLC0415 - numba: 0.2 s

    if front_end is not None:
        law = law.slowed(front_end.contention)
        shape = replace(shape, lag_s=front_end.delay_s)
    arrived_s = traffic.arrival_s + shape.lag_s
    scheduler = new_scheduler(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        block_size=shape.block_size,
        kv_blocks=shape.kv_blocks,
        async_scheduling=shape.late_release,
        prefix_caching=shape.prefix_caching,
        reserves_prompts=shape.reserves_prompts,
        rows=len(traffic),
        log_length=LOG_LENGTH if log else 0,
    )
    requests, state = scheduler.requests, scheduler.state
    requests[:] = new_requests(
        arrived_s if clock is None else np.interp(arrived_s, *clock),
        traffic.input_length,
        traffic.output_length,
        np.minimum(traffic.cached_length, traffic.input_length - 1),
    )
    longest = min(shape.max_model_len, shape.kv_tokens)
    requests["status"][traffic.input_length + traffic.output_length > longest] = ABORTED
    state["rows"] = len(traffic)
    law, logs = law.up_to(max_num_seqs), list[IterationLog]()
    while advance(scheduler, law, NO_NOISE, np.inf, False) == FULL:
        logs.append(scheduler.log.copy())
        state["logged"] = 0
    iterations = np.concatenate([*logs, scheduler.log[: state["logged"][0]]])
    is_done = requests["status"] == FINISHED
    last_s = np.where(is_done, requests["last_token_s"], np.nan)
    times_s = np.array([requests["scheduled_s"], requests["first_token_s"], last_s])
    if clock is not None:
        times_s = np.interp(times_s, *clock[::-1])
        ends_s = np.interp(iterations["start_s"] + iterations["duration_s"], *clock[::-1])
        iterations["start_s"] = np.interp(iterations["start_s"], *clock[::-1])
        iterations["duration_s"] = ends_s - iterations["start_s"]
    busy_s = float(state["busy_s"][0]) or 1.0
    return TwinReplay(
        _rows(traffic, arrived_s, times_s, is_done),
        iterations,
        preemptions=int(requests["preemptions"].sum()),
        running_peak=int(state["most_running"][0]),
        kv_usage_mean=float(state["block_s"][0]) / busy_s / shape.kv_blocks,
        kv_usage_peak=int(state["most_blocks"][0]) / shape.kv_blocks,
    )


def _rows(
    traffic: Traffic, arrived_s: Floats, times_s: Floats, is_done: NDArray[np.bool_]
) -> Requests:
    """Return the REQUEST rows of traffic that reached the scheduler and was scheduled, had its
    first token and its last at these times."""
    (scheduled_s, first_s, last_s), gaps = times_s, traffic.output_length - 1.0
    rows = np.zeros(len(traffic), REQUEST)
    rows["scored"], rows["outcome"] = True, np.where(is_done, "ok", "failed")
    rows["input_length"], rows["output_length"] = traffic.input_length, traffic.output_length
    rows["planned_s"], rows["queued_s"] = traffic.arrival_s, arrived_s
    rows["scheduled_s"], rows["first_s"] = np.maximum(arrived_s, scheduled_s), first_s
    rows["last_s"], rows["end_s"] = last_s, np.where(is_done, last_s, traffic.arrival_s)
    rows["tpot_s"] = np.where(gaps > 0, (last_s - first_s) / np.maximum(1, gaps), np.nan)
    return rows
