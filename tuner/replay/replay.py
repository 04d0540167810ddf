"""The trace, sent again: open loop, on the plan's clock.

Every request leaves when the plan says so, whatever the earlier ones do, and its latency counts
from that *planned* time: no slow engine hides by delaying the next one (coordinated omission).
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner.engines.seam import UNKNOWN, Engine, EngineRequest, Reply, RequestFailedError
from tuner.replay.live_reading import RECENT, LiveReading, reading
from tuner.replay.plan import PlannedRequest
from tuner.replay.priority import sending_priority
from tuner.replay.records import REQUEST, Replay
from tuner.traffic.slo import Slo

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


Progress = Callable[[LiveReading], None]
"""Called four times a second."""


@dataclass(slots=True)
class _Flight:
    """A request that was sent. Times from the start of the replay, but for those of replies."""

    request: PlannedRequest
    due_s: float
    sent_s: float
    replies: list[Reply]
    outcome: str = "failed"
    end_s: float = 0.0

    @property
    def firsts_s(self) -> list[float]:
        return [reply.seen_s[0] for reply in self.replies if reply.seen_s]

    @property
    def slowest(self) -> Reply:
        return max(self.replies, key=lambda one: (one.seen_s[-1:], one.output_tokens))


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
    run = _Run(plan, engine, cut_rule, progress)
    with sending_priority(run.loop):
        await run.go()
    elapsed_s = run.loop.time() - run.start_s
    iterations = (await engine.iterations()).copy()  # which completes the replies
    iterations["start_s"] -= run.start_s
    flights = sorted(run.landed, key=lambda one: (one.due_s, one.request.row))
    return Replay(
        max_num_seqs=max_num_seqs,
        scored_from_s=scored_from_s,
        window_s=window_s,
        elapsed_s=elapsed_s,
        iterations=iterations,
        kv_blocks=engine.facts.kv_blocks,
        requests=np.array([_row(one, run.start_s) for one in flights], REQUEST),
        gaps_s=np.concatenate([np.zeros(0), *map(_gaps_s, flights)]),
        token_budget=engine.facts.max_num_batched_tokens,
        failures=tuple(run.failures),
        cut=run.cut,
        attainment_bound=run.bound,
        slo=cut_rule.slo,
        unsent=run.scored - sum(one.request.scored for one in flights),
        start_s=run.start_s,
    )


@dataclass
class _Run:
    """One replay under way."""

    plan: Sequence[PlannedRequest]
    engine: Engine
    rule: CutRule
    progress: Progress | None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    flights: dict[int, _Flight] = field(default_factory=dict)
    landed: list[_Flight] = field(default_factory=list)
    failures: dict[str, None] = field(default_factory=dict)
    misses: int = 0
    cut: str | None = None
    bound: float = 1.0
    start_s: float = 0.0

    def __post_init__(self) -> None:
        self.scored = sum(request.scored for request in self.plan)
        waited_for = {request.parent for request in self.plan} - {None}
        self.ends: dict[int, asyncio.Future[float]] = {
            request.row: self.loop.create_future()
            for request in self.plan
            if request.row in waited_for
        }
        """Row → when it ended, from the start of the replay: what a next turn waits for."""

    @property
    def now_s(self) -> float:
        return self.loop.time() - self.start_s

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
                raise _first(error)

    async def _send_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for index, request in enumerate(self.plan):
                await self._until(request.planned_s)
                group.create_task(self._send(index, request))

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
        ended = self.ends.get(request.parent) if request.parent is not None else None
        if ended is None:
            return request.planned_s
        due_s = max(request.planned_s, await asyncio.shield(ended) + request.think_s)
        await self._until(due_s)
        return due_s

    async def _send(self, index: int, request: PlannedRequest) -> None:
        due_s = await self._due_s(request)
        flight = _Flight(request, due_s, self.now_s, [Reply() for _ in range(request.n)])
        self.flights[index] = flight
        limit_s = math.inf if request.abort_after_s is None else request.abort_after_s
        until_s = None if math.isinf(limit_s) else self.start_s + due_s + limit_s
        try:
            async with asyncio.timeout_at(until_s):
                await self._generate(flight)
            flight.outcome = "ok"
        except TimeoutError:
            flight.outcome = "aborted"
        except RequestFailedError as failure:
            self.failures[str(failure)] = None
        except asyncio.CancelledError:
            flight.outcome = "cut"
            raise
        finally:
            del self.flights[index]
            flight.end_s = self.now_s
            self.landed.append(flight)
            if (ended := self.ends.get(request.row)) is not None and not ended.done():
                ended.set_result(flight.end_s)
            self.misses += request.scored and not _met(flight, self.start_s, self.rule.slo)

    async def _generate(self, flight: _Flight) -> None:
        one = flight.request
        asked = EngineRequest(one.prompt_token_ids, one.output_length, one.priority)
        if one.n == 1:
            await self.engine.generate(asked, flight.replies[0])
            return
        try:
            async with asyncio.TaskGroup() as group:
                for reply in flight.replies:
                    group.create_task(self.engine.generate(asked, reply))
        except BaseExceptionGroup as failures:
            raise _first(failures) from None

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
        lost = sum(_is_lost(one, now_s, self.start_s, rule.slo) for one in self.flights.values())
        drains_until_s = DRAIN_FACTOR * self.plan[-1].planned_s + WATCH_S
        if self.flights and lost == len(self.flights) and now_s > drains_until_s:
            return "the queue does not drain: all that is left came too late long ago"
        bound = 1 - (self.misses + lost) / max(1, self.scored)
        if bound >= rule.floor:
            return None
        self.bound = bound
        return f"its attainment is certain to stay below {rule.floor:.2f}"

    def _reading(self) -> LiveReading:
        """Return what the clients see now."""
        recent = [*self.landed[-RECENT:], *self.flights.values()]
        return reading(
            self.now_s,
            done=len(self.landed),
            flying=[flight.replies[0] for flight in self.flights.values()],
            ttft_s=[
                one.replies[0].seen_s[0] - self.start_s - one.due_s
                for one in recent
                if one.replies[0].seen_s
            ],
            kv_cache_usage=self._kv_cache_usage(),
        )

    def _kv_cache_usage(self) -> float | None:
        """Return which share of the KV blocks the tokens of those that decode need."""
        facts = self.engine.facts
        if not facts.kv_blocks:
            return None
        blocks = sum(
            -(-(len(flight.request.prompt_token_ids) + reply.output_tokens) // facts.block_size)
            for flight in self.flights.values()
            for reply in flight.replies
            if reply.seen_s
        )
        return min(1.0, blocks / facts.kv_blocks)


def _row(flight: _Flight, start_s: float) -> tuple[object, ...]:
    """Return a request as a row of REQUEST."""
    request, replies = flight.request, flight.replies
    first, slowest = replies[0], flight.slowest
    sent_s = [one.sent_s - start_s for one in replies if one.sent_s is not None]
    single = 0.0 if len(replies) == 1 else math.nan
    is_done = flight.outcome == "ok" and slowest.seen_s
    return (
        request.row,
        request.scored,
        len(request.prompt_token_ids),
        request.output_length,
        flight.due_s,
        max(sent_s, default=flight.sent_s),
        min(flight.firsts_s, default=math.nan) - start_s,
        slowest.seen_s[-1] - start_s if is_done else math.nan,
        flight.end_s,
        flight.outcome,
        sum(one.output_tokens for one in replies),
        _tpot_s(slowest),
        first.queued_s - start_s,
        first.scheduled_s - start_s,
        first.first_s - start_s + single,
        first.last_s - start_s + single,
        _sum([one.cached_tokens for one in replies]),
        _sum([one.preemptions for one in replies]),
        sum(one.joined_tokens for one in replies),
        sum(one.late_tokens for one in replies),
        sum(max(0, len(one.seen_s) - 1) for one in replies),
    )


def _gaps_s(flight: _Flight) -> np.ndarray:
    return np.concatenate([np.diff(reply.seen_s) for reply in flight.replies])


def _tpot_s(reply: Reply) -> float:
    """Return the time of an output token after the first; NaN where they came all at once."""
    seen_s, tokens = reply.seen_s, reply.output_tokens
    if tokens < 2 or len(seen_s) < 2:
        return math.nan
    return (seen_s[-1] - seen_s[0]) / (tokens - 1)


def _sum(counts: Sequence[int]) -> int:
    return UNKNOWN if UNKNOWN in counts else sum(counts)


def _first(error: BaseException) -> BaseException:
    """Return what went wrong first inside a group of failures."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _met(flight: _Flight, start_s: float, slo: Slo) -> bool:
    """Whether a request that is over met the SLO; see ``records.met``."""
    if flight.outcome not in {"ok", "aborted"}:
        return False
    first_s = min(flight.firsts_s, default=flight.end_s + start_s) - start_s
    tpot_s = _tpot_s(flight.slowest)
    return slo.met_by(
        input_length=len(flight.request.prompt_token_ids),
        ttft_s=first_s - flight.due_s,
        tpot_s=None if math.isnan(tpot_s) else tpot_s,
        e2el_s=flight.end_s - flight.due_s,
    )


def _is_lost(flight: _Flight, now_s: float, start_s: float, slo: Slo) -> bool:
    """Whether this request must break the SLO however fast the engine is from now on."""
    request = flight.request
    if not request.scored:
        return False
    waited_s = now_s - flight.due_s
    if slo.e2el_s is not None and waited_s > slo.e2el_s:
        return True
    firsts_s = flight.firsts_s
    if not firsts_s:
        return waited_s > slo.ttft_limit_s(len(request.prompt_token_ids))
    if slo.tpot_s is None or request.output_length < 2 or request.abort_after_s is not None:
        return False
    decoding_s = now_s - (max(firsts_s) - start_s)
    return decoding_s > slo.tpot_s * (request.output_length - 1)
