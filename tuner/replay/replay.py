"""The trace, sent again: open loop, on the plan's clock.

Every request leaves when the plan says so, whatever the earlier ones do, and its latency counts
from that *planned* time: no slow engine hides by delaying the next one (coordinated omission).
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import median

import numpy as np

from tuner.engines.seam import Engine, EngineRequest, Reply, RequestFailedError
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

RECENT = 200
"""Requests whose first tokens tell of now."""

TAIL = 0.95
"""Ten of so many first tokens are beyond it; beyond a p99 there would be two."""


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
    """A replay under way as its clients see it. Requests in flight are decoding, or have not seen
    their first token."""

    elapsed_s: float
    done: int
    in_flight: int
    decoding: int
    tpot_s: float | None
    """Median over the requests that decode, since their first token; None without any."""

    ttft_tail_s: float | None
    """p95 over the newest requests with a first token; None without any."""

    kv_cache_usage: float | None
    """Share of the KV cache that those that decode fill, about. It is counted here, because asking
    the engine would cost it time. Unfinished prompts and cached prefixes are left out. None where
    the engine does not report how large the cache is."""

    @property
    def waiting(self) -> int:
        """Requests in flight before their first token."""
        return self.in_flight - self.decoding


Progress = Callable[[LiveReading], None]
"""Called four times a second."""


@dataclass(slots=True)
class _Flight:
    """A request that was sent. Times from the start of the replay, but for those of its reply."""

    request: PlannedRequest
    due_s: float
    sent_s: float
    reply: Reply = field(default_factory=Reply)
    outcome: str = "failed"
    end_s: float = math.nan

    def first_s(self, start_s: float) -> float:
        """Return when its first output came; NaN before it does."""
        return self.reply.seen_s[0] - start_s if self.reply.seen_s else math.nan

    @property
    def tpot_s(self) -> float:
        """The time of an output token after the first; NaN where they came all at once."""
        seen_s, tokens = self.reply.seen_s, self.reply.output_tokens
        if tokens < 2 or len(seen_s) < 2:
            return math.nan
        return (seen_s[-1] - seen_s[0]) / (tokens - 1)


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
    elapsed_s = run.loop.time() - run.start_s
    iterations = (await engine.iterations()).copy()  # which completes the replies
    iterations["start_s"] -= run.start_s
    flights = sorted(run.landed, key=lambda item: (item.due_s, item.request.row))
    scored = sum(flight.request.scored for flight in flights)
    return Replay(
        max_num_seqs=max_num_seqs,
        scored_from_s=scored_from_s,
        window_s=window_s,
        elapsed_s=elapsed_s,
        iterations=iterations,
        kv_blocks=engine.facts.kv_blocks,
        requests=np.array([_row(flight, run.start_s) for flight in flights], REQUEST),
        gaps_s=np.concatenate([np.zeros(0), *(np.diff(flight.reply.seen_s) for flight in flights)]),
        token_budget=engine.facts.max_num_batched_tokens,
        failures=tuple(run.failures),
        cut=run.cut,
        attainment_bound=run.bound,
        slo=cut_rule.slo,
        unsent=0 if run.is_held else run.scored - scored,
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
    misses: int = 0
    cut: str | None = None
    bound: float = 1.0
    start_s: float = 0.0

    def __post_init__(self) -> None:
        self.is_held = any(request.held_until_s is not None for request in self.plan)
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
        ended = self.ends.get(request.parent) if request.parent is not None else None
        if ended is None:
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
            self.failures[str(failure)] = None
        except asyncio.CancelledError:
            flight.outcome = "cut"
            raise
        finally:
            del self.flights[id(flight)]
            flight.end_s = self.now_s
            self.landed.append(flight)
            if (ended := self.ends.get(request.row)) is not None and not ended.done():
                ended.set_result(flight.end_s)
            self.misses += request.scored and not _met(flight, self.start_s, self.rule.slo)

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
        lost = sum(
            _is_lost(flight, now_s, self.start_s, rule.slo) for flight in self.flights.values()
        )
        drains_until_s = DRAIN_FACTOR * self.plan[-1].planned_s + WATCH_S
        if self.flights and lost == len(self.flights) and now_s > drains_until_s:
            return "the queue does not drain: all that is left came too late long ago"
        bound = 1 - (self.misses + lost) / max(1, self.scored)
        if self.is_held or bound >= rule.floor:
            return None
        self.bound = bound
        return f"its attainment is certain to stay below {rule.floor:.2f}"

    def _reading(self) -> LiveReading:
        """Return what the clients see now, cheaply enough for four times a second."""
        facts, flying = self.engine.facts, list(self.flights.values())
        decoding = [each for each in flying if each.reply.seen_s]
        waited_s = (
            each.first_s(self.start_s) - each.due_s for each in [*self.landed[-RECENT:], *decoding]
        )
        tail_s = sorted([each for each in waited_s if not math.isnan(each)][-RECENT:])
        tpots_s = [each.tpot_s for each in decoding if not math.isnan(each.tpot_s)]
        tokens = (
            len(each.request.prompt_token_ids) + each.reply.output_tokens for each in decoding
        )
        used = sum(-(-token // facts.block_size) for token in tokens) if facts.kv_blocks else 0
        return LiveReading(
            elapsed_s=self.now_s,
            done=len(self.landed),
            in_flight=len(flying),
            decoding=len(decoding),
            tpot_s=median(tpots_s) if tpots_s else None,
            ttft_tail_s=tail_s[int(TAIL * (len(tail_s) - 1))] if tail_s else None,
            kv_cache_usage=min(1.0, used / facts.kv_blocks) if facts.kv_blocks else None,
        )


def _row(flight: _Flight, start_s: float) -> tuple[object, ...]:
    """Return a request as a row of REQUEST."""
    request, reply = flight.request, flight.reply
    is_done = flight.outcome == "ok" and reply.seen_s
    return (
        request.row,
        request.scored,
        len(request.prompt_token_ids),
        request.output_length,
        flight.due_s,
        flight.sent_s if reply.sent_s is None else reply.sent_s - start_s,
        flight.first_s(start_s),
        reply.seen_s[-1] - start_s if is_done else math.nan,
        flight.end_s,
        flight.outcome,
        reply.output_tokens,
        flight.tpot_s,
        reply.queued_s - start_s,
        reply.scheduled_s - start_s,
        reply.first_s - start_s,
        reply.last_s - start_s,
        reply.cached_tokens,
        reply.preemptions,
        reply.late_tokens,
        max(0, len(reply.seen_s) - 1),
    )


def _met(flight: _Flight, start_s: float, slo: Slo) -> bool:
    """Whether a request that is over met the SLO; see ``records.met``."""
    first_s = flight.first_s(start_s) if flight.reply.seen_s else flight.end_s
    return flight.outcome in {"ok", "aborted"} and not slo.broken_by(
        len(flight.request.prompt_token_ids),
        first_s - flight.due_s,
        flight.tpot_s,
        flight.end_s - flight.due_s,
    )


def _is_lost(flight: _Flight, now_s: float, start_s: float, slo: Slo) -> bool:
    """Whether this request must break the SLO however fast the engine is from now on."""
    request = flight.request
    if not request.scored:
        return False
    waited_s = now_s - flight.due_s
    if slo.e2el_s is not None and waited_s > slo.e2el_s:
        return True
    if not flight.reply.seen_s:
        return waited_s > slo.ttft_limit_s(len(request.prompt_token_ids))
    if slo.tpot_s is None or request.output_length < 2 or request.abort_after_s is not None:
        return False
    return now_s - flight.first_s(start_s) > slo.tpot_s * (request.output_length - 1)
