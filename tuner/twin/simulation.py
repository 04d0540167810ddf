"""The twin: a whole trace through the scheduler model, in compiled code. Pure.

It stands for the engine once its step-time law is known (``twin.law``): what every request
would have seen at any cap and any load.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

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
from tuner.system.files import refuse_config_of_folder
from tuner.trace.trace import TraceRequest
from tuner.traffic.slo import Slo
from tuner.traffic.window import busiest_rows, is_served
from tuner.twin.front_end import FrontEnd

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
        columns = np.array(rows, float).reshape(-1, 4).T
        lengths = columns[1:].astype(np.int64)
        return cls(columns[0], lengths[0], lengths[1], lengths[2])

    def __len__(self) -> int:
        return self.arrival_s.size

    def rows(self, chosen: slice | Ints) -> "Traffic":
        return Traffic(*(column[chosen] for column in self.columns()))

    def columns(self) -> tuple[NDArray[Any], ...]:
        return self.arrival_s, self.input_length, self.output_length, self.cached_length

    def busiest(self, most: int) -> "Traffic":
        """Return the stretch of ``most`` sequences with the most tokens a second."""
        tokens = self.input_length + self.output_length
        return self.rows(busiest_rows(self.arrival_s, tokens, most))


@dataclass(frozen=True, slots=True)
class Clock:
    """A machine's own clock, on which every iteration takes what its law says: the same moments on
    the traffic's clock and on it, ascending."""

    times_s: Floats
    machine_s: Floats

    @classmethod
    def of_slowdown(cls, factors: Floats, *, begin_s: float, grid_s: float) -> "Clock":
        """Return the clock of a machine that is so many times slower than its law, on a grid of the
        traffic's clock; before and after the grid as at its ends."""
        known_s = begin_s + grid_s * np.arange(len(factors) + 1, dtype=np.float64)
        machine_s = np.concatenate(([0.0], np.cumsum(grid_s / factors)))
        return cls._extended(known_s, machine_s, float(factors[0]), float(factors[-1]))

    @classmethod
    def of_iterations(cls, log: IterationLog, law: StepLaw) -> "Clock":
        """Return the clock of an engine that did these iterations; while it is idle it goes as the
        traffic's does."""
        begin_s = log["start_s"].astype(float)
        after_s = np.append(begin_s[1:], np.inf)
        end_s = np.minimum(begin_s + log["duration_s"], after_s)
        idle_s = np.append(after_s[:-1] - end_s[:-1], 0.0)
        times_s = np.column_stack((begin_s, end_s)).ravel()
        steps_s = np.column_stack((law.durations_s(log), idle_s)).ravel()
        machine_s = np.concatenate(([0.0], np.cumsum(steps_s)[:-1])) + begin_s[0]
        return cls._extended(times_s, machine_s, 1.0, 1.0)

    @classmethod
    def _extended(cls, times_s: Floats, machine_s: Floats, first: float, last: float) -> "Clock":
        """Return the clock with what is before and after, at these slowdowns."""
        return cls(
            np.concatenate(([times_s[0] - FAR_S], times_s, [times_s[-1] + FAR_S])),
            np.concatenate(
                ([machine_s[0] - FAR_S / first], machine_s, [machine_s[-1] + FAR_S / last])
            ),
        )

    def on_machine(self, times_s: Floats) -> Floats:
        """Return times of the traffic's clock on the machine's."""
        return np.asarray(np.interp(times_s, self.times_s, self.machine_s))

    def on_traffic(self, times_s: Floats) -> Floats:
        """Return times of the machine's clock on the traffic's."""
        return np.asarray(np.interp(times_s, self.machine_s, self.times_s))


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


@dataclass(frozen=True, slots=True)
class TwinReplay:
    """The twin's account of one replay. Arrays have one entry per request, in seconds from its
    arrival; NaN where it did not come to that, and all NaN where the engine would refuse it."""

    max_num_seqs: int
    ttft_s: Floats
    tpot_s: Floats
    """NaN below two tokens too."""

    e2el_s: Floats
    queue_s: Floats
    preemptions: Ints
    recomputed_tokens: int
    duration_s: float
    """From the first arrival to the last token."""

    running_peak: int
    kv_usage_mean: float
    """Share of the blocks, over busy time."""

    kv_usage_peak: float
    iterations: IterationLog
    """Empty unless asked for."""


def shape_of(facts: EngineFacts) -> EngineShape:
    """Return the limits of a started engine."""
    return EngineShape(
        max_num_batched_tokens=facts.max_num_batched_tokens,
        block_size=facts.block_size,
        kv_blocks=facts.kv_blocks,
        max_model_len=facts.max_model_len,
        late_release=bool(facts.arguments.get("async_scheduling")),
        prefix_caching=bool(facts.arguments.get("enable_prefix_caching")),
        reserves_prompts=facts.engine != "sim"
        and facts.arguments.get("scheduler_reserve_full_isl") is not False,
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
    to_machine = _same if clock is None else clock.on_machine
    to_traffic = _same if clock is None else clock.on_traffic
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
        to_machine(arrived_s),
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
    if clock is not None:
        ends_s = to_traffic(iterations["start_s"] + iterations["duration_s"])
        iterations["start_s"] = to_traffic(iterations["start_s"])
        iterations["duration_s"] = ends_s - iterations["start_s"]
    busy_s = float(state["busy_s"][0]) or 1.0
    first_s = to_traffic(requests["first_token_s"])
    is_done = requests["status"] == FINISHED
    end_s = to_traffic(np.where(is_done, requests["last_token_s"], np.nan))
    gaps = requests["output_length"] - 1.0
    now_s = float(to_traffic(state["now"])[0])
    return TwinReplay(
        max_num_seqs=max_num_seqs,
        ttft_s=first_s - traffic.arrival_s,
        tpot_s=np.where(gaps > 0, (end_s - first_s) / np.maximum(1, gaps), np.nan),
        e2el_s=end_s - traffic.arrival_s,
        queue_s=np.maximum(0.0, to_traffic(requests["scheduled_s"]) - arrived_s),
        preemptions=requests["preemptions"].copy(),
        recomputed_tokens=int(state["recomputed_tokens"][0]),
        duration_s=now_s - float(traffic.arrival_s[0]) if len(traffic) else 0.0,
        running_peak=int(state["most_running"][0]),
        kv_usage_mean=float(state["block_s"][0]) / busy_s / shape.kv_blocks,
        kv_usage_peak=int(state["most_blocks"][0]) / shape.kv_blocks,
        iterations=iterations,
    )


def _same(times_s: Floats) -> Floats:
    return times_s


def met(traffic: Traffic, replay: TwinReplay, slo: Slo) -> NDArray[np.bool_]:
    """Return which requests met every limit; a refused one did not."""
    broken: NDArray[np.bool_] = slo.broken_by(
        traffic.input_length, replay.ttft_s, replay.tpot_s, replay.e2el_s
    )
    return ~np.isnan(replay.e2el_s) & ~broken


def attainment(traffic: Traffic, replay: TwinReplay, slo: Slo) -> float:
    """Return the share of all requests that met every limit."""
    return float(met(traffic, replay, slo).mean()) if len(traffic) else 1.0
