"""The trace, sent again: open loop, on the trace's clock.

Every request leaves when it came in production, whatever the earlier ones do, and its latency
counts from that *planned* time: no slow engine hides by delaying the next one (coordinated
omission).
"""

import asyncio
import gc
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count

import numpy as np

from tuner.engines.seam import Engine, EngineRequest, Reply, RequestFailedError
from tuner.engines.sim.virtual_time import VirtualTimeLoop
from tuner.replay.records import REQUEST, Replay, Requests, broken, met
from tuner.trace.trace import TraceRequest
from tuner.traffic.clients import Turn, places_of
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window

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

    stop_s: float = math.inf
    """Stop after so long, whatever it shows."""

    drain_s: float = math.inf
    """Wait so long after the last request was due for what is unfinished."""


Progress = Callable[[float, int, int], None]
"""Called four times a second with the seconds since the begin, how many requests are in flight, and
how many of them have seen their first token."""

Prompt = Callable[[TraceRequest], Sequence[int]]
"""Makes the token ids of a request."""


@dataclass(slots=True, kw_only=True)
class _Flight(Reply):
    """A request that was sent, with what came of it so far."""

    row: int
    scored: bool
    wanted: EngineRequest
    abort_s: float | None
    """It is cancelled so long after it was due, as its client did in production."""

    due_s: float
    outcome: str = "cut"
    end_s: float = math.nan

    def as_row(self, start_s: float, now_s: float) -> tuple[object, ...]:
        """Return it as a row of REQUEST; still under way it has the least TPOT that it can get.

        ``start_s`` is the replay's begin on the loop's clock, which the reply's times are of.
        """
        seen_s, tokens, wanted = self.seen_s, self.output_tokens, self.wanted.output_length
        first_s = last_s = math.nan
        if seen_s:
            first_s, last_s = seen_s[0] - start_s, seen_s[-1] - start_s
        is_open = math.isnan(self.end_s)
        took_s, steps = last_s - first_s, tokens - 1 if len(seen_s) > 1 else 0
        if is_open:  # the rest may come at once, but not before now
            took_s, steps = now_s - first_s, wanted - 1 if self.abort_s is None else 0
        return (
            self.row,
            self.scored,
            len(self.wanted.prompt_token_ids),
            wanted,
            self.due_s,
            self.sent_s - start_s,
            first_s,
            last_s if self.outcome == "ok" else math.nan,
            now_s if is_open else self.end_s,
            self.outcome,
            tokens,
            took_s / steps if steps > 0 else math.nan,
            self.queued_s - start_s,
            self.scheduled_s - start_s,
            self.first_s - start_s,
            self.last_s - start_s,
            self.cached_tokens,
            max(0, len(seen_s) - 1),
        )


async def replay(  # noqa: PLR0913 - what is sent where, when it is cut, and who watches
    requests: Sequence[TraceRequest],
    engine: Engine,
    window: Window,
    *,
    max_num_seqs: int,
    rule: CutRule,
    prompt: Prompt,
    turns: Mapping[int, Turn] | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Send the requests of a window, in order of arrival, and wait until all are done, or cut.

    ``turns`` (row → what its request waits for) closes the loop of sessions; requests that hold a
    recorded concurrency follow one another in any case. Raises EngineError when the engine dies.
    """
    await engine.iterations()
    run = _Run(requests, engine, window, rule, prompt, turns or {})
    with sending_priority(run.loop):
        await run.go(progress)
    elapsed_s = run.now_s
    iterations = await engine.iterations()  # which completes the replies
    iterations["start_s"] -= run.start_s
    flights = sorted(run.landed, key=lambda item: (item.due_s, item.row))
    rows = run.rows(flights, elapsed_s)
    return Replay(
        max_num_seqs=max_num_seqs,
        scored_from_s=window.run_in_s,
        window_s=window.length_s,
        elapsed_s=elapsed_s,
        iterations=iterations,
        kv_blocks=engine.facts.kv_blocks,
        requests=rows,
        gaps_s=np.concatenate([np.zeros(0), *(np.diff(flight.seen_s) for flight in flights)]),
        token_budget=engine.facts.max_num_batched_tokens,
        failures=tuple(run.failures),
        cut=run.cut,
        attainment_bound=run.bound,
        slo=rule.slo,
        unsent=0 if run.places else run.scored - int(rows["scored"].sum()),
        start_s=run.start_s,
    )


class _Run:
    """One replay under way."""

    def __init__(  # noqa: PLR0913, PLR0917 - as of ``replay``
        self,
        requests: Sequence[TraceRequest],
        engine: Engine,
        window: Window,
        rule: CutRule,
        prompt: Prompt,
        turns: Mapping[int, Turn],
    ) -> None:
        self.requests, self.engine, self.window, self.rule = requests, engine, window, rule
        self.prompts = {request.row: prompt(request) for request in requests}
        self.turns, self.places = turns, places_of(requests)
        self.scored = sum(each.n for each in requests if each.arrival_s >= window.start_s)
        self.flights = dict[int, _Flight]()
        self.landed = list[_Flight]()
        self.failures = dict[str, None]()
        self.judged = self.misses = 0
        """Of those that have landed; the second of these did not meet the SLO."""

        self.cut: str | None = None
        self.bound = 1.0
        self.loop = asyncio.get_running_loop()
        parents = {turn.parent for turn in turns.values()} & self.prompts.keys()
        self.ends = {row: self.loop.create_future() for row in parents}
        """Row → when it ended, from the start of the replay: what a next turn waits for."""

        self.due_s = max(map(self._planned_s, requests), default=0.0)
        self.start_s = self.loop.time()

    def _planned_s(self, request: TraceRequest) -> float:
        return request.arrival_s - (self.window.start_s - self.window.run_in_s)

    @property
    def now_s(self) -> float:
        return self.loop.time() - self.start_s

    def rows(self, flights: Sequence[_Flight], now_s: float) -> Requests:
        return np.array([flight.as_row(self.start_s, now_s) for flight in flights], REQUEST)

    async def go(self, progress: Progress | None) -> None:
        """Send everything and wait for it, or until it is cut."""
        sending = self.loop.create_task(self._send_all())
        try:
            while not (await asyncio.wait([sending], timeout=WATCH_S))[0]:
                flying = self.rows([*self.flights.values()], self.now_s)
                if progress is not None:
                    progress(self.now_s, len(flying), int((flying["first_s"] > 0).sum()))
                self.cut = self._why_cut(flying)
                if self.cut is not None or self.now_s >= self.due_s + self.rule.drain_s:
                    return
            sending.result()
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send_all(self) -> None:
        """Send each of a request's n sequences by itself, as vLLM schedules them."""
        held: dict[int, list[TraceRequest]] = {}
        async with asyncio.TaskGroup() as group:
            for request in self.requests:
                if request.row in self.places:
                    held.setdefault(self.places[request.row][0], []).append(request)
                    continue
                planned_s, ids = self._planned_s(request), self.prompts[request.row]
                await self._until(planned_s)
                scored = request.arrival_s >= self.window.start_s
                for _ in range(request.n):
                    group.create_task(self._send(request, ids, planned_s, scored=scored))
            for place in held.values():
                group.create_task(self._hold(place))

    async def _hold(self, requests: Sequence[TraceRequest]) -> None:
        """Send one request after the other, and again, as long as their place is recorded as held:
        by a fast engine more than were recorded, by a slow one fewer. A place that was given up and
        taken again is another."""
        await self._until(self._planned_s(requests[0]))
        window = self.window
        until_s = self.places[requests[0].row][1] - (window.start_s - window.run_in_s)
        for lap in count():
            for request in requests:
                if (now_s := self.now_s) >= until_s:
                    return
                ids = self.prompts[request.row]  # turned, so that no prefix is found in the cache
                turned = [*ids[lap % len(ids) :], *ids[: lap % len(ids)]]
                # a place may be held until after the window, whose rates are of its length
                scored = window.run_in_s <= now_s < window.replay_s
                await self._send(request, turned, now_s, scored=scored)

    async def _until(self, due_s: float) -> None:
        """Wake up early and wait awake: a busy machine may wake a sleeper milliseconds late."""
        until_s = self.start_s + due_s
        await asyncio.sleep(until_s - EARLY_S - self.loop.time())
        while (now_s := self.loop.time()) < until_s:
            await asyncio.sleep(0)
            if self.loop.time() == now_s:  # on virtual time only a sleep lets time pass
                await asyncio.sleep(until_s - now_s)

    async def _send(
        self, request: TraceRequest, ids: Sequence[int], due_s: float, *, scored: bool
    ) -> None:
        """Send a request that is due, or its think time after the turn before it ended. It is in
        ``flights`` meanwhile, and has landed then, whatever becomes of it."""
        turn = None if request.row in self.places else self.turns.get(request.row)
        if turn is not None and turn.parent in self.ends:
            ended_s = await asyncio.shield(self.ends[turn.parent])
            due_s = max(due_s, ended_s + turn.think_s)
            await self._until(due_s)
        length, abort_s = max(1, request.output_length), None
        if request.status == "aborted" and request.e2e_s is not None:
            # as many tokens as its client wanted, or as fit
            abort_s, room = request.e2e_s, self.engine.facts.max_model_len - request.input_length
            length = min(max(request.max_tokens or room, length), room)
        wanted = EngineRequest(ids, length, request.priority or 0)
        flight = _Flight(
            row=request.row,
            scored=scored,
            wanted=wanted,
            abort_s=abort_s,
            due_s=due_s,
            sent_s=self.loop.time(),
        )
        self.flights[id(flight)] = flight
        until_s = None if abort_s is None else self.start_s + due_s + abort_s
        try:
            async with asyncio.timeout_at(until_s):
                await self.engine.generate(wanted, flight)
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

    def _why_cut(self, flying: Requests) -> str | None:
        """Return why the rest is not worth its time; None while it is."""
        now_s, rule = self.now_s, self.rule
        ended = self.rows(self.landed[self.judged :], now_s)
        self.judged += len(ended)
        self.misses += int((ended["scored"] & ~met(ended, rule.slo)).sum())
        lost = int((flying["scored"] & broken(flying, rule.slo)).sum())
        if not self.places:
            self.bound = 1 - (self.misses + lost) / max(1, self.scored)
        if now_s >= rule.stop_s:
            return f"it was stopped after {rule.stop_s:.0f} s"
        if len(flying) and lost == len(flying) and now_s > DRAIN_FACTOR * self.due_s + WATCH_S:
            return "the queue does not drain: all that is left came too late long ago"
        if self.bound < rule.floor:
            return f"its attainment is certain to stay below {rule.floor:.2f}"
        return None


@contextmanager
def sending_priority(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Keep requests that are due from being delayed in this thread, for the time of the block.

    Garbage collection is off. Where the system lets it, the thread goes before other processes; the
    engine keeps its own priority. On virtual time nothing can be late: there it does nothing.
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
        yield
