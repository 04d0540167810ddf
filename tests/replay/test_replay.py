"""The trace is sent on the plan's clock, whatever the engine does."""

import asyncio
import gc
import os
from dataclasses import replace

import pytest
from msgspec import structs

from tests.support.builders import request, rows_of
from tuner.engines.seam import EngineRequest, Reply
from tuner.engines.sim.start import SimEngine, SimStarter
from tuner.engines.sim.virtual_time import VirtualTimeLoop, run
from tuner.engines.sim.world import World, WorldKv, WorldStep
from tuner.errors import EngineError
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule, replay, sending_priority
from tuner.trace.trace import TraceRequest
from tuner.traffic.clients import Turn
from tuner.traffic.schedule import Tick, holding
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window

SECOND_A_STEP = World(step=WorldStep(a=1.0), engine_start=0.0)
"""Every iteration takes one second, whatever runs: a token a second each."""

WINDOW = Window(0.0, 10.0, 0.0)
NEVER_CUT = CutRule(Slo(ttft_s=1e9), floor=0.0)


def planned(row: int, at_s: float, tokens: int = 3) -> TraceRequest:
    return TraceRequest(row, at_s, input_length=4, output_length=tokens)


def ids(item: TraceRequest) -> list[int]:
    return [item.row + 1] * 4


def replayed(
    *requests: TraceRequest,
    cap: int = 4,
    rule: CutRule = NEVER_CUT,
    world: World = SECOND_A_STEP,
    window: Window = WINDOW,
    turns: dict[int, Turn] | None = None,
) -> Replay:
    async def go() -> Replay:
        engine = await SimStarter(world).start(max_num_seqs=cap)
        try:
            return await replay(
                requests, engine, window, max_num_seqs=cap, rule=rule, prompt=ids, turns=turns
            )
        finally:
            await engine.stop()

    return run(go())


def test_a_slow_engine_does_not_delay_the_next_request() -> None:
    """Open loop: the queue shows up in TTFT and not in when requests leave."""
    result = replayed(planned(0, 0.0, tokens=3600), planned(1, 10.0, tokens=1), cap=1)
    first, second = rows_of(result)
    assert (first.sent_s, second.sent_s) == (0, 10)
    assert second.ttft_s == pytest.approx(3600 + 1 - 10)
    assert second.queue_s == pytest.approx(3590)
    assert second.queued_s == pytest.approx(10)
    assert (second.engine_first_s, second.engine_last_s) == (3601, 3601)


def test_a_turn_of_a_closed_session_waits_for_the_one_before_it_and_its_think_time() -> None:
    """The first takes 10 s where production took less: the second leaves 2 s after its end."""
    pair = planned(0, 0.0, tokens=10), planned(1, 5.0, tokens=1)
    first, second = rows_of(replayed(*pair, turns={1: Turn(0, 2.0)}))
    assert first.end_s == 10.0
    assert (second.planned_s, second.sent_s) == (12.0, 12.0)
    assert second.ttft_s == pytest.approx(1.0)


def test_a_turn_is_never_sent_before_it_was_recorded_nor_without_its_parent() -> None:
    early, orphan = planned(1, 30.0, tokens=1), planned(2, 31.0, tokens=1)
    turns = {1: Turn(0, 2.0), 2: Turn(99, 2.0)}
    result = replayed(planned(0, 0.0, tokens=3), early, orphan, turns=turns)
    assert [each.sent_s for each in rows_of(result)] == [0.0, 30.0, 31.0]


def test_an_abort_is_cancelled_when_its_client_gave_up_and_frees_its_slot() -> None:
    gone = replace(planned(0, 0.0, tokens=1000), status="aborted", e2e_s=5.5)
    result = replayed(gone, planned(1, 1.0, tokens=2), cap=1)
    aborted, served = rows_of(result)
    assert (aborted.outcome, aborted.end_s, aborted.output_tokens) == ("aborted", 5.5, 5)
    assert served.outcome == "ok"
    assert served.first_s == pytest.approx(7.0, abs=1.0)


def test_each_of_n_sequences_is_planned_by_itself() -> None:
    assert [each.e2el_s for each in rows_of(replayed(request(n=3), cap=2))] == [5.0, 5.0, 10.0]


def test_the_run_in_is_sent_and_not_scored() -> None:
    window = Window(start_s=10.0, length_s=2.0, run_in_s=1.0)
    sent = rows_of(replayed(*(planned(row, float(row)) for row in (9, 10, 11)), window=window))
    assert [(each.planned_s, each.scored) for each in sent] == [(0, False), (1, True), (2, True)]


@pytest.mark.parametrize(("max_tokens", "wanted"), [(500, 86), (60, 60), (None, 86)])
def test_an_abort_keeps_asking_until_its_client_gave_up(
    max_tokens: int | None, wanted: int
) -> None:
    gone = request(0, status="aborted", e2e_s=1.5, output_length=3, max_tokens=max_tokens)
    small = structs.replace(SECOND_A_STEP, kv=WorldKv(blocks=6))
    (each,) = rows_of(replayed(gone, world=small))
    assert (each.output_length, each.end_s, each.outcome) == (wanted, 1.5, "aborted")
    (each,) = rows_of(replayed(replace(gone, e2e_s=None), world=small))
    assert (each.output_length, each.outcome) == (3, "ok")


@pytest.mark.parametrize("step_s", [0.1, 4.0])
def test_a_recorded_concurrency_is_held_whatever_the_speed_of_the_engine(step_s: float) -> None:
    """Recorded at 2 s a request: three in flight for 20 s, then five for 20 s, then two for 20."""
    schedule = [Tick(0.0, 3), Tick(20.0, 5), Tick(40.0, 2), Tick(60.0, 0)]
    held = holding(schedule, [(10, 80), (12, 120)])
    requests = [replace(each, row=row, output_length=5) for row, each in enumerate(held)]
    window = Window(0.0, 60.0, 0.0)
    sent = replayed(
        *requests,
        window=window,
        cap=8,
        world=structs.replace(SECOND_A_STEP, step=WorldStep(a=step_s)),
    ).requests
    for at_s, level in ((2.05, 3), (10.05, 3), (19.05, 3), (22.05, 5), (30.05, 5), (39.05, 5)):
        in_flight = int(((sent["sent_s"] <= at_s) & (at_s < sent["end_s"])).sum())
        assert abs(in_flight - level) <= 1
    late = sent[sent["sent_s"] >= 40.0]  # nobody is sent away where the level falls
    assert len({*late["sent_s"].tolist()}) >= 20 / (5 * step_s)
    assert sent["sent_s"].max() < 60.0


def test_what_holds_a_place_beyond_the_window_is_sent_and_not_scored() -> None:
    """Rates are of the window's length: here two places for 30 s, of a window of 10."""
    held = holding([Tick(0.0, 2), Tick(30.0, 0)], [(10, 1500)])
    requests = [replace(each, output_length=4) for each in held]
    sent = replayed(*requests, world=structs.replace(SECOND_A_STEP, step=WorldStep(a=0.5))).requests
    assert sent["sent_s"].max() > 20.0
    assert (sent["scored"] == (sent["sent_s"] < 10.0)).all()


def test_a_hopeless_replay_is_cut_when_too_many_are_certain_to_miss() -> None:
    slo = Slo(ttft_s=5.0)
    plan = [planned(row, 0.0, tokens=100) for row in range(10)]
    result = replayed(*plan, cap=1, rule=CutRule(slo, floor=0.5))
    assert result.cut is not None
    assert result.elapsed_s == pytest.approx(5.25, abs=0.3)
    assert result.attainment_bound == pytest.approx(0.1)
    assert {each.outcome for each in rows_of(result)} == {"cut"}


def test_tokens_that_come_too_slowly_are_a_certain_miss_too() -> None:
    # 10 tokens at one a second take 9 s; a TPOT limit of 0.5 s is lost after 4.5 s.
    rule = CutRule(Slo(tpot_s=0.5), floor=0.5)
    result = replayed(planned(0, 0.0, tokens=10), rule=rule)
    assert result.elapsed_s == pytest.approx(1 + 4.5, abs=0.3)


def test_a_step_is_replayed_for_seconds_only_where_these_are_enough() -> None:
    rule = CutRule(Slo(ttft_s=1e9), floor=0.5, stop_s=5.0)
    result = replayed(planned(0, 0.0, tokens=100), rule=rule)
    assert result.elapsed_s == 5.0
    assert len(result.iterations) == 5


def test_a_request_that_fails_is_data() -> None:
    tiny = World(step=WorldStep(a=1.0), kv=WorldKv(blocks=2), engine_start=0.0)
    result = replayed(planned(0, 0.0), planned(1, 1.0, tokens=1000), world=tiny)
    good, bad = rows_of(result)
    assert (good.outcome, bad.outcome) == ("ok", "failed")
    assert len(result.failures) == 1


class Mortal:
    """An engine that dies under the second request."""

    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine
        self.facts = engine.facts
        self.iterations = engine.iterations

    async def generate(self, request: EngineRequest, reply: Reply) -> None:
        if request.output_length == 2:
            raise EngineError("the engine died", hint="Look into its log.")
        await self._engine.generate(request, reply)


def test_an_engine_that_dies_ends_the_replay_with_its_error() -> None:
    async def go() -> int:
        engine = await SimStarter(SECOND_A_STEP).start(max_num_seqs=4)
        with pytest.raises(EngineError, match="the engine died"):
            await replay(
                [planned(0, 0.0), planned(1, 1.0, tokens=2)],
                Mortal(engine),  # type: ignore[arg-type]
                WINDOW,
                max_num_seqs=4,
                rule=NEVER_CUT,
                prompt=ids,
            )
        left = len(asyncio.all_tasks()) - 1
        await engine.stop()
        return left

    assert run(go()) == 0


def sending() -> tuple[bool, int]:
    """Return whether garbage is collected, and how we run."""
    return gc.isenabled(), os.sched_getscheduler(0)


@pytest.mark.parametrize("kind", [asyncio.SelectorEventLoop, VirtualTimeLoop])
def test_a_sender_goes_first_where_time_is_real_and_all_is_undone(kind: type) -> None:
    before, loop = sending(), kind()
    with sending_priority(loop):
        now = sending()
    loop.close()
    first = {(False, before[1]), (False, os.SCHED_RR | os.SCHED_RESET_ON_FORK)}  # if it may
    assert now in ({before} if kind is VirtualTimeLoop else first)
    assert sending() == before
