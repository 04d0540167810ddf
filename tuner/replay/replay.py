"""The trace, sent again: open loop, on the plan's clock.

Every request leaves when the plan says so, whatever the earlier ones do, and its latency counts
from that *planned* time: no slow engine hides by delaying the next one (coordinated omission).
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.seam import Engine, EngineRequest, Reply, RequestFailedError
from tuner.replay.live_reading import RECENT, LiveReading, reading
from tuner.replay.plan import PlannedRequest
from tuner.replay.priority import sending_priority
from tuner.replay.records import Outcome, Replay, RequestRecord
from tuner.traffic.slo import Slo

WATCH_S = 0.25
"""Seconds between two looks at a running replay: is it hopeless, how far is it?"""

DRAIN_FACTOR = 2.0
"""Times as long as the plan that a replay may last for requests that have missed already."""

EARLY_S = 0.003
"""Seconds for which a request's sender is awake before it is due."""


@dataclass(frozen=True, slots=True)
class CutRule:
    """The rule by which a replay is not worth going on with."""

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
    request: PlannedRequest
    due_s: float
    """When it had to leave, from the start of the replay."""

    sent_s: float
    replies: list[Reply]
    outcome: Outcome = "failed"
    error: str | None = None
    end_s: float = 0.0


async def replay(  # noqa: PLR0913 - the plan, where it goes, and how it is watched
    plan: Sequence[PlannedRequest],
    engine: Engine,
    *,
    max_num_seqs: int,
    scored_from_s: float,
    window_s: float,
    cut_rule: CutRule,
    progress: Progress | None = None,
    name: str = "replay",
) -> Replay:
    """Send ``plan`` (in order of planned time) and wait until all of it is done, or cut.

    Raises EngineError when the engine dies.
    """
    await engine.take_iterations()
    run = _Run(plan, engine, name, cut_rule, progress)
    with sending_priority(run.loop):
        await run.go()
    elapsed_s = run.loop.time() - run.start_s
    iterations = (await engine.take_iterations()).copy()
    iterations["start_s"] -= run.start_s
    records = [_record(flight, run.start_s) for flight in run.landed]  # now they are complete
    return Replay(
        max_num_seqs=max_num_seqs,
        scored_from_s=scored_from_s,
        window_s=window_s,
        elapsed_s=elapsed_s,
        records=tuple(sorted(records, key=lambda record: (record.planned_s, record.row))),
        iterations=iterations,
        kv_blocks=engine.facts.kv_blocks,
        token_budget=engine.facts.max_num_batched_tokens,
        cut=run.cut,
        attainment_bound=run.bound,
        slo=cut_rule.slo,
        unsent=run.scored - sum(record.scored for record in records),
        start_s=run.start_s,
    )


class _Run:
    """One replay under way."""

    def __init__(
        self,
        plan: Sequence[PlannedRequest],
        engine: Engine,
        name: str,
        cut_rule: CutRule,
        progress: Progress | None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.plan, self.engine, self.name = plan, engine, name
        self.cut_rule, self.progress = cut_rule, progress
        self.scored = sum(request.scored for request in plan)
        self.drain_timeout_s = DRAIN_FACTOR * plan[-1].planned_s + WATCH_S if plan else 0.0
        self.flights: dict[int, _Flight] = {}
        self.ends: dict[int, asyncio.Future[float]] = {
            request.row: self.loop.create_future() for request in plan
        }
        """Row → when it ended, from the start of the replay: what a next turn waits for."""

        self.landed: list[_Flight] = []
        self.misses = 0
        self.cut: str | None = None
        self.bound = 1.0
        self.start_s = 0.0

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
                await self._until(self.start_s + request.planned_s)
                group.create_task(self._send(index, request))

    async def _until(self, due_s: float) -> None:
        """Wake up early and wait awake: a busy machine may wake a sleeper milliseconds late."""
        early_s = due_s - EARLY_S - self.loop.time()
        if early_s > 0:
            await asyncio.sleep(early_s)
        while (now_s := self.loop.time()) < due_s:
            await asyncio.sleep(0)
            if self.loop.time() == now_s:  # on virtual time only a sleep lets time pass
                await asyncio.sleep(due_s - now_s)

    async def _due_s(self, request: PlannedRequest) -> float:
        """Wait until a request is due and return when that was: as planned, or its think time after
        the turn before it ended."""
        ended = self.ends.get(request.parent) if request.parent is not None else None
        if ended is None:
            return request.planned_s
        due_s = max(request.planned_s, await asyncio.shield(ended) + request.think_s)
        await self._until(self.start_s + due_s)
        return due_s

    async def _send(self, index: int, request: PlannedRequest) -> None:
        due_s = await self._due_s(request)
        sent_s = self.loop.time() - self.start_s
        flight = _Flight(request, due_s, sent_s, [Reply() for _ in range(request.n)])
        self.flights[index] = flight
        deadline_s = (
            None if request.abort_after_s is None else self.start_s + due_s + request.abort_after_s
        )
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._generate(index, flight)
            flight.outcome = "ok"
        except TimeoutError:
            flight.outcome = "aborted"
        except RequestFailedError as failure:
            flight.error = str(failure)
        except asyncio.CancelledError:
            flight.outcome = "cut"
            raise
        finally:
            del self.flights[index]
            flight.end_s = self.loop.time() - self.start_s
            self.landed.append(flight)
            if not self.ends[request.row].done():
                self.ends[request.row].set_result(flight.end_s)
            record = _record(flight, self.start_s, whole=False)
            if record.scored and not record.meets(self.cut_rule.slo):
                self.misses += 1

    async def _generate(self, index: int, flight: _Flight) -> None:
        request = flight.request
        requests = [
            EngineRequest(
                f"{self.name}-{index}-{part}",
                request.prompt_token_ids,
                request.output_length,
                request.priority,
            )
            for part in range(request.n)
        ]
        if len(requests) == 1:
            await self.engine.generate(requests[0], flight.replies[0])
            return
        try:
            async with asyncio.TaskGroup() as group:
                for one, reply in zip(requests, flight.replies, strict=True):
                    group.create_task(self.engine.generate(one, reply))
        except BaseExceptionGroup as failures:
            raise _first(failures) from None

    def _reading(self, now_s: float) -> LiveReading:
        """Return what the clients see now."""
        recent = [*self.landed[-RECENT:], *self.flights.values()]
        return reading(
            now_s,
            done=len(self.landed),
            flying=[flight.replies[0] for flight in self.flights.values()],
            in_flight=len(self.flights),
            ttft_s=[
                first_s - self.start_s - flight.due_s
                for flight in recent
                if (first_s := flight.replies[0].first_token_s) is not None
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
            if reply.first_token_s is not None
        )
        return min(1.0, blocks / facts.kv_blocks)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            now_s = self.loop.time() - self.start_s
            if self.progress is not None:
                self.progress(self._reading(now_s))
            rule = self.cut_rule
            if rule.drain_s is not None and now_s >= self.plan[-1].planned_s + rule.drain_s:
                return
            if rule.budget_s is not None and now_s >= rule.budget_s:
                self.cut = "the budget ended it"
                return
            if rule.stop_after_s is not None and now_s >= rule.stop_after_s:
                self.cut = "ruled out by Little's law; replayed for its iterations only"
                return
            lost = sum(
                _certain_miss(flight, now_s, self.start_s, rule.slo)
                for flight in self.flights.values()
            )
            if self.flights and lost == len(self.flights) and now_s > self.drain_timeout_s:
                self.cut = "the queue does not drain: all that is left came too late long ago"
                return
            bound = 1 - (self.misses + lost) / max(1, self.scored)
            if bound < rule.floor:
                self.cut = f"its attainment is certain to stay below {rule.floor:.2f}"
                self.bound = bound
                return


def _record(flight: _Flight, start_s: float, *, whole: bool = True) -> RequestRecord:
    """Return what is known of a request; without ``whole`` all but the gaps between its outputs, of
    which there may be thousands."""
    request, replies = flight.request, flight.replies
    slowest = max(replies, key=lambda reply: (reply.last_token_s or 0.0, reply.output_tokens))
    firsts = [reply.first_token_s for reply in replies if reply.first_token_s is not None]
    sent = [reply.sent_s - start_s for reply in replies if reply.sent_s is not None]
    return RequestRecord(
        row=request.row,
        scored=request.scored,
        input_length=len(request.prompt_token_ids),
        output_length=request.output_length,
        planned_s=flight.due_s,
        sent_s=max(sent, default=flight.sent_s),
        outcome=flight.outcome,
        end_s=flight.end_s,
        output_tokens=sum(reply.output_tokens for reply in replies),
        first_token_s=min(firsts) - start_s if firsts else None,
        last_token_s=(
            slowest.last_token_s - start_s
            if flight.outcome == "ok" and slowest.last_token_s is not None
            else None
        ),
        tpot_s=_per_token_s(slowest.seen_s, slowest.output_tokens),
        engine_tpot_s=_per_token_s(slowest.output_s, slowest.output_tokens),
        **_engine_times(replies, start_s),
        itl_s=_gaps_s(replies) if whole else (),
        queue_s=replies[0].queue_s,
        cached_tokens=_sum(reply.cached_tokens for reply in replies),
        preemptions=_sum(reply.preemptions for reply in replies),
        merged_outputs=sum(reply.merged_outputs for reply in replies),
        late_outputs=sum(reply.late_outputs for reply in replies),
        transfer_s=slowest.transfer_s,
        held_s=slowest.held_s,
        error=flight.error,
    )


def _gaps_s(replies: Sequence[Reply]) -> tuple[float, ...]:
    return tuple(
        gap for reply in replies for gap in np.diff(np.asarray(reply.seen_s, float)).tolist()
    )


def _per_token_s(times_s: Sequence[float], tokens: int) -> float | None:
    """Return the time of an output token after the first; None where they came all at once."""
    if tokens < 2 or len(times_s) < 2:
        return None
    return (times_s[-1] - times_s[0]) / (tokens - 1)


def _engine_times(replies: Sequence[Reply], start_s: float) -> dict[str, float]:
    """Return when the engine's scheduler got the one sequence, and its first and last token."""
    reply = replies[0]
    if len(replies) > 1 or reply.queued_s is None or not reply.output_s:
        return {}
    return {
        "engine_queued_s": reply.queued_s - start_s,
        "engine_first_s": reply.output_s[0] - start_s,
        "engine_last_s": reply.output_s[-1] - start_s,
    }


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None where one is not known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _first(error: BaseException) -> BaseException:
    """Return what went wrong first inside a group of failures."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _certain_miss(flight: _Flight, now_s: float, start_s: float, slo: Slo) -> bool:
    """Whether this request must break the SLO however fast the engine is from now on."""
    request = flight.request
    if not request.scored:
        return False
    waited_s = now_s - flight.due_s
    if slo.e2el_s is not None and waited_s > slo.e2el_s:
        return True
    firsts = [reply.first_token_s for reply in flight.replies if reply.first_token_s is not None]
    if not firsts:
        return waited_s > slo.ttft_limit_s(len(request.prompt_token_ids))
    if slo.tpot_s is None or request.output_length < 2 or request.abort_after_s is not None:
        return False
    decoding_s = now_s - (max(firsts) - start_s)
    return decoding_s > slo.tpot_s * (request.output_length - 1)
