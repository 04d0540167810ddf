"""The trace, sent again: open loop, on the plan's clock.

Every request leaves when the plan says so, whatever the earlier ones do, and its latency counts
from that *planned* time: no slow engine hides by delaying the next one (coordinated omission).
"""

import asyncio
import gc
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import median

import numpy as np

from tuner.engines.seam import Engine, EngineRequest, Reply, RequestFailedError
from tuner.engines.sim.virtual_time import VirtualTimeLoop
from tuner.replay.records import REQUEST, Replay, Requests, broken, met
from tuner.system import cores
from tuner.trace.trace import TraceRequest
from tuner.traffic.sessions import Turn, places_of
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request and its time: ``planned_s`` from the start of the replay."""

    row: int
    planned_s: float
    prompt_token_ids: Sequence[int]
    output_length: int
    abort_after_s: float | None = None
    """It is cancelled so long after its planned time, as its client did in production."""

    priority: int = 0
    scored: bool = True
    """False in the run-in: sent, but not counted."""

    parent: int | None = None
    """Row of the turn that must have ended before; None in open loop."""

    think_s: float = 0.0
    """How long after the parent's end it leaves, if that is later than planned."""

    place: int = 0
    """Of those in flight that a recorded concurrency holds: requests of a place follow one another.
    A place that was given up and taken again is another."""

    held_until_s: float | None = None
    """When its place was given up; None where no concurrency is held."""


def plan_requests(
    requests: Sequence[TraceRequest],
    window: Window,
    *,
    max_model_len: int,
    prompt: Callable[[TraceRequest], Sequence[int]],
    turns: Mapping[int, Turn] | None = None,
) -> tuple[PlannedRequest, ...]:
    """Return what to send, each of a request's n sequences by itself, as vLLM schedules them.

    ``turns`` (row → what its request waits for) closes the loop of sessions; requests that hold a
    recorded concurrency follow one another in any case.
    """
    origin_s = window.start_s - window.run_in_s
    turns, places = turns or {}, places_of(requests)
    planned = []
    for request in requests:
        place, until_s = places.get(request.row, (0, None))
        turn = turns.get(request.row) if until_s is None else None
        item = PlannedRequest(
            row=request.row,
            planned_s=request.arrival_s - origin_s,
            prompt_token_ids=prompt(request),
            output_length=_requested_length(request, max_model_len),
            abort_after_s=request.e2e_s if request.status == "aborted" else None,
            priority=request.priority or 0,
            scored=request.arrival_s >= window.start_s,
            parent=None if turn is None else turn.parent,
            think_s=0.0 if turn is None else turn.think_s,
            place=place,
            held_until_s=None if until_s is None else until_s - origin_s,
        )
        planned += [item] * request.n
    return tuple(planned)


def _requested_length(request: TraceRequest, max_model_len: int) -> int:
    """Return the tokens that are asked for: of an aborted request as many as its client wanted, or
    as fit, where the trace knows when it gave up."""
    recorded = max(1, request.output_length)
    if request.status != "aborted" or request.e2e_s is None:
        return recorded
    room = max_model_len - request.input_length
    return min(max(request.max_tokens or room, recorded), room)


WATCH_S = 0.25
"""Seconds between two looks at a running replay: is it hopeless, how far is it?"""

DRAIN_FACTOR = 2.0
"""Times as long as the plan that a replay may last for requests that have missed already."""

EARLY_S = 0.003
"""Seconds for which a request's sender is awake before it is due."""


@dataclass(frozen=True, slots=True)
class CutRule:
    """The rule by which the rest of a replay is not worth its time."""

    slo: Slo
    floor: float
    """Attainment below which this cap has lost: max(0.5, best so far - 0.01)."""

    stop_after_s: float | None = None
    """Replay only so much of a step that arithmetic has ruled out already."""

    budget_s: float | None = None
    """Cut the replay after so long, whatever it shows."""

    drain_s: float | None = None
    """Wait so long after the last request was due for what is unfinished; None: for all of it."""


@dataclass(frozen=True, slots=True)
class LiveReading:
    """A replay under way as its clients see it."""

    elapsed_s: float
    in_flight: int
    decoding: int
    """Of those in flight, that have seen their first token."""

    tpot_s: float | None
    """Median over the requests that decode, since their first token; None without any."""

    @property
    def waiting(self) -> int:
        """Requests in flight before their first token."""
        return self.in_flight - self.decoding


Progress = Callable[[LiveReading], None]
"""Called four times a second."""


@dataclass(slots=True)
class _Flight:
    """A request that was sent."""

    request: PlannedRequest
    due_s: float
    sent_s: float
    reply: Reply = field(default_factory=Reply)
    outcome: str = "cut"
    end_s: float = math.nan

    def row(self, start_s: float, now_s: float) -> tuple[object, ...]:
        """Return it as a row of REQUEST; still under way it has the least TPOT that it can get.

        ``start_s`` is the replay's begin on the loop's clock, which the reply's times are of.
        """
        request, reply = self.request, self.reply
        seen_s, tokens = reply.seen_s, reply.output_tokens
        first_s = seen_s[0] - start_s if seen_s else math.nan
        last_s = seen_s[-1] - start_s if seen_s else math.nan
        tpot_s = (last_s - first_s) / (tokens - 1) if tokens > 1 and len(seen_s) > 1 else math.nan
        if math.isnan(self.end_s):  # the rest may come at once, but not before now
            is_open = request.output_length > 1 and request.abort_after_s is None
            tpot_s = (now_s - first_s) / (request.output_length - 1) if is_open else math.nan
        return (
            request.row,
            request.scored,
            len(request.prompt_token_ids),
            request.output_length,
            self.due_s,
            self.sent_s if reply.sent_s is None else reply.sent_s - start_s,
            first_s,
            last_s if self.outcome == "ok" else math.nan,
            now_s if math.isnan(self.end_s) else self.end_s,
            self.outcome,
            tokens,
            tpot_s,
            reply.queued_s - start_s,
            reply.scheduled_s - start_s,
            reply.first_s - start_s,
            reply.last_s - start_s,
            reply.cached_tokens,
            max(0, len(seen_s) - 1),
        )


async def replay(  # noqa: PLR0913 - the plan, where it goes, and how it is watched
    plan: Sequence[PlannedRequest],
    engine: Engine,
    *,
    max_num_seqs: int,
    scored_from_s: float,
    window_s: float,
    cut_rule: CutRule,
    progress: Progress | None = None,
) -> Replay:
    """Send ``plan`` (in order of planned time) and wait until all of it is done, or cut.

    Raises EngineError when the engine dies.
    """
    await engine.iterations()
    run = _Run(plan, engine, cut_rule, progress, scored_from_s, scored_from_s + window_s)
    with sending_priority(run.loop):
        await run.go()
    elapsed_s = run.now_s
    iterations = (await engine.iterations()).copy()  # which completes the replies
    iterations["start_s"] -= run.start_s
    flights = sorted(run.landed, key=lambda item: (item.due_s, item.request.row))
    requests = run.rows(flights, elapsed_s)
    return Replay(
        max_num_seqs=max_num_seqs,
        scored_from_s=scored_from_s,
        window_s=window_s,
        elapsed_s=elapsed_s,
        iterations=iterations,
        kv_blocks=engine.facts.kv_blocks,
        requests=requests,
        gaps_s=np.concatenate([np.zeros(0), *(np.diff(flight.reply.seen_s) for flight in flights)]),
        token_budget=engine.facts.max_num_batched_tokens,
        failures=tuple(run.failures),
        cut=run.cut,
        attainment_bound=run.bound,
        slo=cut_rule.slo,
        unsent=0 if run.is_held else run.scored - int(requests["scored"].sum()),
        start_s=run.start_s,
    )


@dataclass
class _Run:
    """One replay under way."""

    plan: Sequence[PlannedRequest]
    engine: Engine
    rule: CutRule
    progress: Progress | None
    scored_from_s: float
    scored_until_s: float
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    flights: dict[int, _Flight] = field(default_factory=dict)
    landed: list[_Flight] = field(default_factory=list)
    failures: dict[str, None] = field(default_factory=dict)
    judged: int = 0
    """Of those that have landed; ``misses`` of these did not meet the SLO."""

    misses: int = 0
    cut: str | None = None
    bound: float = 1.0
    start_s: float = 0.0

    def __post_init__(self) -> None:
        self.is_held = any(request.held_until_s is not None for request in self.plan)
        self.scored = sum(request.scored for request in self.plan)
        parents = {request.parent for request in self.plan}
        self.ends: dict[int | None, asyncio.Future[float]] = {
            row: self.loop.create_future() for row in parents & {each.row for each in self.plan}
        }
        """Row → when it ended, from the start of the replay: what a next turn waits for."""

    @property
    def now_s(self) -> float:
        return self.loop.time() - self.start_s

    def rows(self, flights: Sequence[_Flight], now_s: float) -> Requests:
        return np.array([flight.row(self.start_s, now_s) for flight in flights], REQUEST)

    async def go(self) -> None:
        """Send everything and wait for it, or until the watch cuts it."""
        self.start_s = self.loop.time()
        tasks = {self.loop.create_task(work) for work in (self._send_all(), self._watch())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            if (error := task.exception()) is not None:
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                raise error

    async def _send_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self.is_held:
                for place in dict.fromkeys(request.place for request in self.plan):
                    group.create_task(self._hold([r for r in self.plan if r.place == place]))
                return
            for request in self.plan:
                await self._until(request.planned_s)
                group.create_task(self._send(request))

    async def _hold(self, requests: Sequence[PlannedRequest]) -> None:
        """Send one request after the other, and again, as long as their place is recorded as held:
        by a fast engine more than were recorded, by a slow one fewer."""
        await self._until(requests[0].planned_s)
        until_s = requests[0].held_until_s or 0.0
        for lap in count():
            for request in requests:
                if (now_s := self.now_s) >= until_s:
                    return
                ids = request.prompt_token_ids  # turned, so that no prefix is found in the cache
                turned = [*ids[lap % len(ids) :], *ids[: lap % len(ids)]]
                # a place may be held until after the window, whose rates are of its length
                is_scored = self.scored_from_s <= now_s < self.scored_until_s
                await self._send(
                    replace(request, planned_s=now_s, prompt_token_ids=turned, scored=is_scored)
                )

    async def _until(self, due_s: float) -> None:
        """Wake up early and wait awake: a busy machine may wake a sleeper milliseconds late."""
        until_s = self.start_s + due_s
        early_s = until_s - EARLY_S - self.loop.time()
        if early_s > 0:
            await asyncio.sleep(early_s)
        while (now_s := self.loop.time()) < until_s:
            await asyncio.sleep(0)
            if self.loop.time() == now_s:  # on virtual time only a sleep lets time pass
                await asyncio.sleep(until_s - now_s)

    async def _due_s(self, request: PlannedRequest) -> float:
        """Wait until a request is due and return when that was: as planned, or its think time after
        the turn before it ended."""
        if (ended := self.ends.get(request.parent)) is None:
            return request.planned_s
        due_s = max(request.planned_s, await asyncio.shield(ended) + request.think_s)
        await self._until(due_s)
        return due_s

    async def _send(self, request: PlannedRequest) -> None:
        due_s = await self._due_s(request)
        flight = _Flight(request, due_s, self.now_s)
        self.flights[id(flight)] = flight
        limit_s = request.abort_after_s
        until_s = None if limit_s is None else self.start_s + due_s + limit_s
        wanted = EngineRequest(request.prompt_token_ids, request.output_length, request.priority)
        try:
            async with asyncio.timeout_at(until_s):
                await self.engine.generate(wanted, flight.reply)
            flight.outcome = "ok"
        except TimeoutError:
            flight.outcome = "aborted"
        except RequestFailedError as failure:
            flight.outcome = "failed"
            self.failures[str(failure)] = None
        finally:
            del self.flights[id(flight)]
            flight.end_s = self.now_s
            self.landed.append(flight)
            if (ended := self.ends.get(request.row)) is not None and not ended.done():
                ended.set_result(flight.end_s)

    async def _watch(self) -> None:
        while self.cut is None:
            await asyncio.sleep(WATCH_S)
            if self.progress is not None:
                self.progress(self._reading())
            drain_s = self.rule.drain_s
            if drain_s is not None and self.now_s >= self.plan[-1].planned_s + drain_s:
                return
            self.cut = self._why_cut()

    def _why_cut(self) -> str | None:
        """Return why the rest is not worth its time; None while it is."""
        now_s, rule = self.now_s, self.rule
        if rule.budget_s is not None and now_s >= rule.budget_s:
            return "the budget ended it"
        if rule.stop_after_s is not None and now_s >= rule.stop_after_s:
            return "ruled out by Little's law; replayed for its iterations only"
        ended = self.rows(self.landed[self.judged :], now_s)
        self.judged += len(ended)
        self.misses += int((ended["scored"] & ~met(ended, rule.slo)).sum())
        flying = self.rows([*self.flights.values()], now_s)
        lost = int((flying["scored"] & broken(flying, rule.slo)).sum())
        drains_until_s = DRAIN_FACTOR * self.plan[-1].planned_s + WATCH_S
        if len(flying) and lost == len(flying) and now_s > drains_until_s:
            return "the queue does not drain: all that is left came too late long ago"
        bound = 1 - (self.misses + lost) / max(1, self.scored)
        if self.is_held or bound >= rule.floor:
            return None
        self.bound = bound
        return f"its attainment is certain to stay below {rule.floor:.2f}"

    def _reading(self) -> LiveReading:
        """Return what the clients see now, cheaply enough for four times a second."""
        replies = [each.reply for each in self.flights.values() if each.reply.seen_s]
        tpots_s = [
            (each.seen_s[-1] - each.seen_s[0]) / (each.output_tokens - 1)
            for each in replies
            if each.output_tokens > 1
        ]
        return LiveReading(
            elapsed_s=self.now_s,
            in_flight=len(self.flights),
            decoding=len(replies),
            tpot_s=median(tpots_s) if tpots_s else None,
        )


@contextmanager
def sending_priority(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Keep requests that are due from being delayed in this thread, for the time of the block.

    Garbage collection is off. Where the system lets it, the thread goes before other processes, and
    where there are three cores it has one for itself; the engine keeps its own priority and the
    other cores. On virtual time nothing can be late: there it does nothing.
    """
    if isinstance(loop, VirtualTimeLoop):
        yield
        return
    gc.disable()
    with ExitStack() as undo:
        undo.callback(gc.enable)
        with suppress(OSError, AttributeError):  # not allowed, or not a system that can
            before = os.sched_getscheduler(0), os.sched_getparam(0)
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
            undo.callback(os.sched_setscheduler, 0, *before)
        with suppress(OSError, AttributeError):
            mask = os.sched_getaffinity(0)
            os.sched_setaffinity(0, cores.split(mask)[0])
            undo.callback(os.sched_setaffinity, 0, mask)
        yield
