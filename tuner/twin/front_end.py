"""The front end between users and a server's scheduler: HTTP, tokeniser, detokeniser. Pure.

Three parts of it are felt. It takes CPU from the engine, whose iterations last longer: contention.
Before the scheduler, requests are read one after the other, in a + b·input tokens each. After it
every chunk of a stream takes c, first come first served, all sequences of an iteration at once.
Each chunk is also under way for a fixed time, which keeps nobody else waiting.

Waiting is Lindley's recursion (1952). Before the scheduler it is of whole requests; after it, of
work that comes evenly between the first and the last token of each sequence. That costs a sort of
the requests, not of their tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tuner.engines.scheduler.state import Floats, Ints, StepLaw
from tuner.engines.seam import IterationLog
from tuner.replay.records import ProbeResult, Requests
from tuner.twin.simulation import (
    EngineShape,
    MachineClock,
    Slowdown,
    Traffic,
    TwinReplay,
    simulate,
)

WARNED_UTILISATION = 0.7
MOST_UTILISATION = 0.9
"""Utilisation above which nothing is promised: the wait would depend on the smallest error of the
load."""

FEWEST = 5
"""Requests whose ways through a front end tell anything of it."""

AT_ONCE_S = 1e-9
"""Times of two iterations that are no nearer to each other are two."""

TYPICAL_S = np.array([1e-3, 1e-6]), np.array([1e-3, 1e-4])
"""The size of what is fitted: a and b; the fixed time and c."""


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """A front end, as one server showed it. The defaults are none at all."""

    contention: float = 1.0
    """How many times as long an iteration takes as without it."""

    request_s: float = 0.0
    """a: for each request, before the scheduler."""

    input_token_s: float = 0.0
    """b: for each token of its prompt."""

    delivery_s: float = 0.0
    """For which a chunk is under way after the scheduler, however little there is to do."""

    chunk_s: float = 0.0
    """c: for each chunk."""

    processes: int = 1
    """Among which requests are shared: vLLM's ``api_server_count``."""

    def work_s(self, input_length: float, output_length: float) -> float:
        """Return how long one request keeps one process busy."""
        before_s = self.request_s + self.input_token_s * input_length
        return before_s + self.chunk_s * output_length

    def utilisation(self, rate_rps: float, input_length: float, output_length: float) -> float:
        """Return the share of its time for which a process is busy, with requests of these mean
        lengths."""
        return rate_rps * self.work_s(input_length, output_length) / self.processes

    def busy(self, traffic: Traffic, length_s: float) -> float:
        """Return the same for traffic that comes within so many seconds."""
        if not len(traffic):
            return 0.0
        lengths = float(traffic.input_length.mean()), float(traffic.output_length.mean())
        return self.utilisation(len(traffic) / length_s, *lengths)


def strain(utilisation: float, *, load: float, processes: int) -> str | None:
    """Say that a front end is too busy for what is promised behind it, and what helps."""
    if utilisation <= WARNED_UTILISATION:
        return None
    enough = math.ceil(processes * utilisation / WARNED_UTILISATION)
    nothing = "nothing is promised there" if utilisation > MOST_UTILISATION else "little is left"
    return (
        f"at {load:g} times the load the front end is busy {utilisation:.0%} of its time, "
        f"{nothing}: serve with --api-server-count {enough}"
    )


@dataclass(frozen=True, slots=True)
class Passages:
    """The ways of some requests through a front end, in the order in which they were sent. Arrays
    of one length, in seconds on one clock."""

    sent_s: Floats
    input_length: Ints
    output_length: Ints
    reached_s: Floats
    """The earliest that the engine can have got it: it looks between two iterations."""

    queued_s: Floats
    """The latest: when its scheduler had it."""

    engine_first_s: Floats
    engine_last_s: Floats
    """Its first and last token in the engine, and at the client."""

    first_s: Floats
    last_s: Floats

    def __len__(self) -> int:
        return self.sent_s.size


def passages_of(requests: Requests, iterations: IterationLog) -> Passages:
    """Return the ways of the requests that were served whole, and whose times the engine told."""
    known = requests[(requests["outcome"] == "ok") & ~np.isnan(requests["engine_first_s"])]
    known = known[np.argsort(known["sent_s"], kind="stable")]
    return Passages(
        sent_s=known["sent_s"].copy(),
        input_length=known["input_length"].copy(),
        output_length=known["output_tokens"].copy(),
        reached_s=_reached_s(known["queued_s"], iterations),
        queued_s=known["queued_s"].copy(),
        engine_first_s=known["engine_first_s"].copy(),
        engine_last_s=known["engine_last_s"].copy(),
        first_s=known["first_s"].copy(),
        last_s=known["last_s"].copy(),
    )


def probed_passages(probes: Sequence[ProbeResult]) -> Passages:
    """Return the ways of requests that were sent one at a time, and whose times were told."""
    known = [one for one in probes if one.passage_s]
    times = np.array([one.passage_s for one in known], dtype=float).reshape(-1, 6).T
    sent_s, queued_s, engine_first_s, engine_last_s, first_s, last_s = times
    return Passages(
        sent_s=sent_s,
        input_length=np.array([one.input_length for one in known], np.int64),
        output_length=np.array([one.output_tokens for one in known], np.int64),
        reached_s=queued_s,
        queued_s=queued_s,
        engine_first_s=engine_first_s,
        engine_last_s=engine_last_s,
        first_s=first_s,
        last_s=last_s,
    )


def _reached_s(queued_s: Floats, iterations: IterationLog) -> Floats:
    """Return when the iteration began after which each request was found; of one that an idle
    engine got, when that was."""
    if not len(iterations):
        return queued_s
    start_s = iterations["start_s"]
    end_s = start_s + iterations["duration_s"]
    at = np.searchsorted(start_s, queued_s, side="right") - 1
    before = np.maximum(at - 1, 0)
    busy = (at > 0) & (queued_s < end_s[at]) & (start_s[at] - end_s[before] < AT_ONCE_S)
    return np.where(busy, start_s[before], queued_s)


def contention_of(law: StepLaw, logs: Sequence[IterationLog]) -> float:
    """Return how many times as long iterations behind a front end took as the law says of the same
    work; at least 1, because nothing gets faster by a front end."""
    lawful_s = sum(float(law.durations_s(one).sum()) for one in logs)
    took_s = sum(float(one["duration_s"].sum()) for one in logs)
    return max(1.0, took_s / lawful_s) if lawful_s > 0 else 1.0


def probed_contention(law: StepLaw, probes: Sequence[Passages]) -> float:
    """Return the same of lone requests, which decode one sequence at a time."""
    lawful_s = sum(float((one.output_length - 1).sum()) * law.decode_s[1] for one in probes)
    took_s = sum(float((one.engine_last_s - one.engine_first_s).sum()) for one in probes)
    return max(1.0, took_s / lawful_s) if lawful_s > 0 else 1.0


def fit_front_end(
    parts: Sequence[Passages], *, contention: float = 1.0, processes: int = 1
) -> FrontEnd | None:
    """Return the front end that explains these ways best, none of its times negative. Each part is
    traffic of its own: a replay, or probes. None where they tell too little."""
    parts = [one for one in parts if len(one)]
    if sum(map(len, parts)) < FEWEST:
        return None
    found = FrontEnd(contention=contention, processes=processes)

    def early_or_late_s(values: Floats) -> Floats:
        tried = replace(found, request_s=float(values[0]), input_token_s=float(values[1]))
        off = []
        for one in parts:
            at_s = _queued_s(tried, one.sent_s, one.input_length)
            off.append(at_s - np.clip(at_s, one.reached_s, one.queued_s))
        return np.concatenate(off)

    def late_s(values: Floats) -> Floats:
        tried = replace(found, delivery_s=float(values[0]), chunk_s=float(values[1]))
        off = []
        for one in parts:
            first_s, last_s = _seen_s(
                tried, one.engine_first_s, one.engine_last_s, one.output_length
            )
            off += [first_s - one.first_s, last_s - one.last_s]
        return np.concatenate(off)

    request_s, input_token_s = _least_squares(early_or_late_s, TYPICAL_S[0])
    delivery_s, chunk_s = _least_squares(late_s, TYPICAL_S[1])
    return replace(
        found,
        request_s=request_s,
        input_token_s=input_token_s,
        delivery_s=delivery_s,
        chunk_s=chunk_s,
    )


def _least_squares(off: Callable[[Floats], Floats], typical: Floats) -> list[float]:
    """Return the values of 0 or more with the least errors. Single large errors count less: a
    process that was not run for a while says nothing of the usual."""
    from scipy import optimize  # noqa: PLC0415 - 0.7 s, and only what fits a front end needs it

    found = optimize.least_squares(
        off,
        typical,
        bounds=(0.0, np.inf),
        x_scale=typical,
        diff_step=0.01,
        loss="soft_l1",
        f_scale=max(float(np.median(np.abs(off(np.zeros(len(typical)))))), 1e-6),
    )
    values: list[float] = np.where(found.x > 1e-6 * typical, found.x, 0.0).tolist()
    return values


def reaches_scheduler(front_end: FrontEnd, traffic: Traffic) -> Traffic:
    """Return the traffic as the scheduler gets it: in the same order, later."""
    return replace(traffic, arrival_s=_queued_s(front_end, traffic.arrival_s, traffic.input_length))


def simulate_behind(  # noqa: PLR0913 - what is replayed, and behind what
    front_end: FrontEnd | None,
    traffic: Traffic,
    law: StepLaw,
    shape: EngineShape,
    *,
    max_num_seqs: int,
    slowdown: Slowdown | MachineClock | None = None,
    until_s: float = np.inf,
    log: bool = False,
) -> TwinReplay:
    """Replay traffic at one cap as its clients see it, behind a front end where there is one:
    ``law`` is of an engine without."""
    arriving = traffic
    if front_end is not None:
        arriving = reaches_scheduler(front_end, traffic)
        law, shape = law.slowed(front_end.contention), replace(shape, lag_s=0.0)
    replay = simulate(
        arriving,
        law,
        shape,
        max_num_seqs=max_num_seqs,
        slowdown=slowdown,
        until_s=until_s,
        log=log,
    )
    return replay if front_end is None else through(front_end, traffic, replay)


def through(front_end: FrontEnd, traffic: Traffic, replay: TwinReplay) -> TwinReplay:
    """Return a replay as clients see it, from when they sent: ``traffic`` is theirs, ``replay``
    what the twin made of ``reaches_scheduler(front_end, traffic)``."""
    reached_s = _queued_s(front_end, traffic.arrival_s, traffic.input_length)
    first_s, last_s = _seen_s(
        front_end, reached_s + replay.ttft_s, reached_s + replay.e2el_s, traffic.output_length
    )
    gaps = traffic.output_length - 1.0
    return replace(
        replay,
        ttft_s=first_s - traffic.arrival_s,
        tpot_s=np.where(gaps > 0, (last_s - first_s) / np.maximum(1, gaps), np.nan),
        e2el_s=last_s - traffic.arrival_s,
    )


def _queued_s(front_end: FrontEnd, sent_s: Floats, input_length: Ints) -> Floats:
    """Return when the engine gets requests that are sent in this order. Several processes are taken
    for one that is as many times faster, and then keeps a request for the rest of the time that one
    takes."""
    service_s = front_end.request_s + front_end.input_token_s * input_length
    shared_s = service_s / front_end.processes
    served_s = np.cumsum(shared_s)
    ready_s = served_s + np.maximum.accumulate(sent_s - (served_s - shared_s))
    found: Floats = np.maximum.accumulate(ready_s + service_s - shared_s)
    return found


def _seen_s(
    front_end: FrontEnd, first_s: Floats, last_s: Floats, output_length: Ints
) -> tuple[Floats, Floats]:
    """Return when clients see the first and the last token of sequences; given is when the engine
    had them, NaN where it never did."""
    chunk_s = front_end.chunk_s / front_end.processes
    first_s, last_s = first_s + front_end.delivery_s, last_s + front_end.delivery_s
    known = ~(np.isnan(first_s) | np.isnan(last_s))
    begin_s, end_s = first_s[known], last_s[known]
    if not begin_s.size:
        return first_s, last_s
    begun, ended = np.sort(begin_s), np.sort(end_s)

    def with_it(times_s: Floats) -> Ints:
        """Return how many sequences have a token in the iteration that ends then."""
        came = np.searchsorted(begun, times_s, side="right")
        return np.asarray(came - np.searchsorted(ended, times_s, side="left"))

    first_left_s, last_left_s = _backlog(begin_s, end_s, output_length[known] - 1, chunk_s)
    # the newest sequence is the last of its iteration; one that ends is anywhere in its own
    first_s[known] += first_left_s + chunk_s * with_it(begin_s)
    last_s[known] += last_left_s + chunk_s * (with_it(end_s) + 1) / 2
    return first_s, np.maximum(first_s, last_s)


def _backlog(begin_s: Floats, end_s: Floats, gaps: Ints, chunk_s: float) -> tuple[Floats, Floats]:
    """Return the unfinished work of one server before the iterations in which sequences begin, and
    before those in which they end.

    Of each sequence all chunks but the last come evenly in between.
    """
    size = begin_s.size
    rate = chunk_s * gaps / np.maximum(end_s - begin_s, AT_ONCE_S)
    nothing = np.zeros(size)
    order = np.argsort(times_s := np.concatenate((begin_s, end_s, end_s)), kind="stable")
    flow = np.cumsum(np.concatenate((rate, -rate, nothing))[order])
    lasts_s = np.concatenate((nothing, nothing, nothing + chunk_s))[order]
    changes_s = lasts_s[:-1] + (flow[:-1] - 1) * np.diff(times_s[order])
    level_s = np.concatenate(([0.0], np.cumsum(changes_s)))  # as if it could fall below nothing
    left_s = np.empty_like(times_s)
    left_s[order] = level_s - np.minimum.accumulate(level_s)
    return left_s[:size], left_s[size : 2 * size]
