"""The whole run on the simulated engine: what is measured, kept, resumed and confirmed."""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.builders import request
from tuner.engines.sim.start import SimEngine, SimStarter
from tuner.engines.sim.virtual_time import run
from tuner.engines.sim.world import World, WorldStep
from tuner.errors import UsageError
from tuner.replay.numbers import Measurement
from tuner.runs import journal
from tuner.runs.bench import Bench
from tuner.runs.result import SweepOutcome
from tuner.runs.sweep.conclusion import Conclusion, SweepSettings
from tuner.runs.sweep.sweep import Sweep, sweep
from tuner.trace.trace import TraceRequest
from tuner.traffic.requirements import parse_requirement
from tuner.traffic.slo import Slo
from tuner.twin.check import alarm

pytestmark = pytest.mark.usefixtures("by_few_draws")

SETTINGS = SweepSettings(
    ceiling=32, slo=None, window="all", step_s=60, budget_s=1200, headroom=1.25,
    closed_sessions=False, trace_block_size=16,
)  # fmt: skip

SLOTS_COST_LATE = World(step=WorldStep(a=0.020, b=0.0006, n0=16, h=0.0025))
"""Beyond 16 sequences each further one costs four times as much: the article's machine."""

# A request every 0.25 s, 50 + 50 to 150 tokens: about 400 output tokens/s. In this world 8 slots
# give 8 / 24.8 ms = 323 tokens/s, 16 give 16 / 29.6 ms = 541.
TRAFFIC = [
    request(row, arrival_s=row * 0.25, input_length=50, output_length=50 + (row * 37) % 101)
    for row in range(800)
]


# A half of it: 200 output tokens/s, for which 4 slots are too few and 8 are enough. Its three
# windows are one where it ends after 100 s.
LONG_HALF = TRAFFIC[::2]
HALF = LONG_HALF[:200]
UP_TO_8 = replace(SETTINGS, ceiling=8)

# The same, but 24 come at once every 6 s: 16 at a time give each a token in 30 ms, and all 24 at a
# time in 20 + 14.4 + 8 x 2.5 = 54 ms.
BURSTS = [replace(each, arrival_s=each.row // 24 * 6.0) for each in TRAFFIC]


class Notes:
    """Keeps the lines that a run shows."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, text: str) -> None:
        self.lines.append(text)

    def trial(self, what: str, length_s: float) -> None:
        self.lines.append(f"{what} {length_s:.0f}")

    def live(self, *_: object) -> None: ...

    def measured(self, what: str, measurement: Measurement) -> None:
        self.lines.append(f"{what} {measurement.attainment:.2f}")

    def warn(self, text: str) -> None:
        self.lines.append(text)


def swept(
    run_dir: Path,
    settings: SweepSettings = SETTINGS,
    *,
    notes: Notes | None = None,
    traffic: Sequence[TraceRequest] = TRAFFIC,
    confirming: World | None = None,
) -> SweepOutcome:
    server = SimStarter(confirming) if confirming else None
    if server is not None:
        server.device = SimStarter(SLOTS_COST_LATE).device
    with closing(journal.opened(run_dir, {})) as book:
        starter = SimStarter(SLOTS_COST_LATE)
        work = sweep(traffic, starter, settings, book, notes or Notes(), confirming=server)
        return run(work)


ARTICLES = replace(SETTINGS, slo=Slo(ttft_s=4.0, tpot_s=0.040))


def test_the_confirming_engine_replays_what_the_ladder_did_not(tmp_path: Path) -> None:
    calm = swept(tmp_path, settings=ARTICLES, traffic=BURSTS)
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    (replay,) = (each for each in events if each.get("purpose") == "confirm" and "file" in each)
    window = calm.basis.workload.window
    confirmed_s = (replay["window"]["start_s"] + t for t in (0.0, replay["window"]["length_s"]))
    assert not any(window.start_s < t < window.start_s + window.length_s for t in confirmed_s)
    check = calm.checked
    assert check is not None
    assert (len(check), alarm(check)) == (6, None)


SLOWER = World(step=structs.replace(SLOTS_COST_LATE.step, a=0.032))
"""Of LONG_HALF, 200 output tokens/s, 8 slots of the ladder's machine serve 250 too: they give 323.
Those of this one, which is slower, give 8 / 36.8 ms = 217."""


def test_a_headroom_that_falls_short_is_named(tmp_path: Path) -> None:
    settings = replace(SETTINGS, ceiling=16)
    outcome = swept(tmp_path, settings=settings, traffic=LONG_HALF, confirming=SLOWER)
    assert outcome.verdict.max_num_seqs == 8
    assert any("does not hold at 1.25 times the load" in text for text in outcome.warnings)


def test_a_small_budget_shortens_the_window_and_a_smaller_one_is_refused(tmp_path: Path) -> None:
    short = replace(UP_TO_8, budget_s=300)
    outcome = swept(tmp_path / "short", settings=short, traffic=HALF)
    assert outcome.basis.workload.window.replay_s < 30
    assert outcome.basis.journal.spent_s() <= 300
    with pytest.raises(UsageError, match="--budget"):  # two starts take 120 s of it
        swept(tmp_path / "none", settings=replace(UP_TO_8, budget_s=150), traffic=HALF)


BEHIND = World(step=WorldStep(a=0.030, b=0.0006, n0=16, h=0.0025))
"""The same machine, as users see it through a front end that adds 10 ms to each token."""


def test_where_a_server_confirms_the_derived_slo_is_of_what_its_users_see(tmp_path: Path) -> None:
    """An idle engine makes a token in 20.6 ms, the server's in 30.6."""
    inside = swept(tmp_path / "alone", settings=UP_TO_8, traffic=HALF)
    by_server = replace(UP_TO_8, confirm="server")
    served = swept(tmp_path / "behind", settings=by_server, traffic=HALF, confirming=BEHIND)
    limits = [each.basis.workload.slo.tpot_s or 0.0 for each in (served, inside)]
    assert limits[0] / limits[1] == pytest.approx(30.6 / 20.6, rel=0.01)
    assert served.confirmed is not None
    assert served.confirmed.tpot_s is not None
    assert served.confirmed.tpot_s.p50 > 0.030


class Served(SimStarter):
    """Its engines say that they are behind a server with two processes for its API."""

    async def start(self, *, max_num_seqs: int) -> SimEngine:
        engine = await super().start(max_num_seqs=max_num_seqs)
        arguments = {**engine.facts.arguments, "api_server_count": 2}
        engine.facts = replace(engine.facts, engine="serve", arguments=arguments)
        return engine


def test_what_a_server_adds_to_its_engine_is_fitted_kept_and_weighed(tmp_path: Path) -> None:
    quick = parse_requirement("p95 tpot <= 28ms")
    settings = replace(UP_TO_8, confirm="server", slo=Slo(tpot_s=0.2), requirements=(quick,))
    ladder, server = SimStarter(SLOTS_COST_LATE), Served(BEHIND)
    server.device = ladder.device

    async def main(book: journal.Journal) -> tuple[Conclusion, Conclusion, SweepOutcome]:
        bench = Bench(book, Notes(), None, block_size=16)
        sweeping = Sweep(bench, settings, ladder, server)
        try:
            await sweeping.prepare(HALF)
            await sweeping.climb()
            alone = sweeping.conclusion
            await sweeping.confirm()
        finally:
            await bench.stop()
        return alone, sweeping.conclusion, SweepOutcome(sweeping.conclusion, sweeping.basis, HALF)

    with closing(journal.opened(tmp_path / "run", {})) as book:
        alone, probed, outcome = run(main(book))
    front_end, kept = outcome.front_end, journal.read(tmp_path / "run")
    assert front_end is not None
    # An iteration of n sequences takes 30 + 0.6 n milliseconds instead of 20 + 0.6 n.
    assert front_end.contention == pytest.approx(33 / 23, rel=0.03)
    assert front_end.delay_s == pytest.approx(0, abs=1e-3)
    assert probed.view is not None
    seen = probed.view.machine.front_end
    assert seen is not None
    assert seen.contention == pytest.approx(30.6 / 20.6, rel=0.03)
    assert kept.probed("confirm")
    # The engine alone keeps what is required; behind its server no cap does, as is seen at once.
    (first,), (second,), (last,) = (each.verdict.requirements for each in (alone, probed, outcome))
    assert first.kept
    for each in (second, last):
        assert each.at_worst is not None
        assert each.at_worst > 0.030
        assert not each.kept
    assert last.measured is not None
    assert last.at_worst == pytest.approx(last.measured, rel=0.05)
    # The curve is of the front end as the whole replay showed it, not as the probes did.
    promised, replayed = outcome.conclusion.chosen.numbers.tpot_s, outcome.confirmed
    assert promised is not None
    assert replayed is not None
    assert replayed.tpot_s is not None
    assert promised.p95 == pytest.approx(replayed.tpot_s.p95, rel=0.05)
    few = [each.curve[0].numbers.tpot_s for each in (alone, probed)]
    assert [each and each.p50 for each in few] == pytest.approx([0.0206, 0.0306], rel=0.03)


class Piped(SimStarter):
    """Its engines say that they do what the scheduler model does not know."""

    async def start(self, *, max_num_seqs: int) -> SimEngine:
        engine = await super().start(max_num_seqs=max_num_seqs)
        engine.facts = replace(engine.facts, unmodelled=["pipeline_parallel_size=2"])
        return engine


def test_what_the_twin_does_not_know_the_windows_decide(tmp_path: Path) -> None:
    notes = Notes()
    with closing(journal.opened(tmp_path / "run", {})) as book:
        outcome = run(sweep(TRAFFIC, Piped(SLOTS_COST_LATE), ARTICLES, book, notes))
    assert outcome.conclusion.promised is None
    assert outcome.verdict.max_num_seqs == 16
    assert outcome.verdict.confidence >= 0.95  # caps that lost twice lost alike
    doubt = "the twin does not know pipeline_parallel_size=2"
    assert f"{doubt}: the windows must decide" in notes.lines
    assert [each for each in outcome.warnings if each.startswith(doubt)]
