"""The whole run on the simulated engine: what is measured, kept, resumed and confirmed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders import request
from tuner import journal
from tuner.engines.sim import SimStarter
from tuner.engines.virtual_time import run
from tuner.engines.world import World, WorldKv, WorldNoise, WorldStep
from tuner.errors import RunError, TraceError, UsageError
from tuner.measure import Measurement
from tuner.outcome import SweepOutcome
from tuner.settings import SweepSettings
from tuner.slo import Slo
from tuner.sweep import sweep

SETTINGS = SweepSettings(
    ceiling=32, slo=None, window="busiest", step_s=60, budget_s=1200, headroom=1.25, fresh=False,
    seed=0, trace_block_size=16,
)  # fmt: skip

SLOTS_COST_LATE = World(step=WorldStep(a=0.020, b=0.0006, n0=16, h=0.0025))
"""Beyond 16 sequences each further one costs four times as much: the article's machine."""

# A request every 0.25 s, 50 + 50 to 150 tokens: about 400 output tokens/s. In this world 8 slots
# give 8 / 24.8 ms = 323 tokens/s, 16 give 16 / 29.6 ms = 541.
TRAFFIC = [
    request(row, arrival_s=row * 0.25, input_length=50, output_length=50 + (row * 37) % 101)
    for row in range(800)
]


class Notes:
    """Keeps what a run tells."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.stop_after: int | None = None

    def stage(self, text: str) -> None:
        self.told.append(text)

    def trial(self, what: str, window_s: float) -> None:
        self.told.append(f"{what} {window_s:.0f}")

    def live(self, elapsed_s: float, done: int, in_flight: int) -> None: ...

    def measured(self, what: str, measurement: Measurement) -> None:
        self.told.append(f"{what} {measurement.attainment:.2f}")
        if self.stop_after is not None:
            self.stop_after -= 1
            if not self.stop_after:
                raise KeyboardInterrupt

    def warn(self, text: str) -> None:
        self.told.append(text)


def swept(
    run_dir: Path,
    world: World = SLOTS_COST_LATE,
    settings: SweepSettings = SETTINGS,
    *,
    notes: Notes | None = None,
    resume: bool = False,
) -> SweepOutcome:
    book = journal.resume(run_dir, {}) if resume else journal.create(run_dir, {})
    try:
        return run(sweep(TRAFFIC, SimStarter(world), settings, book, notes or Notes()))
    finally:
        book.close()


def test_the_articles_machine_has_its_knee_at_16(tmp_path: Path) -> None:
    outcome = swept(tmp_path)
    assert (outcome.verdict.max_num_seqs, len(outcome.starts_s)) == (16, 2)
    by_cap = {one.max_num_seqs: one for one in outcome.curve}
    assert by_cap[8].cut is not None
    assert by_cap[16].attainment > 0.99
    assert outcome.confirmed is not None
    assert outcome.confirmed.attainment == pytest.approx(by_cap[16].attainment, abs=0.02)


def test_an_engine_of_its_own_for_every_step_gives_the_same_answer(tmp_path: Path) -> None:
    live = swept(tmp_path / "live")
    fresh = swept(
        tmp_path / "fresh",
        settings=replace(SETTINGS, fresh=True, budget_s=3600),
    )
    assert fresh.verdict.max_num_seqs == live.verdict.max_num_seqs
    assert len(fresh.starts_s) > len(live.starts_s)


def test_nothing_is_measured_twice_after_an_interruption(tmp_path: Path) -> None:
    whole = swept(tmp_path / "whole")
    notes = Notes()
    notes.stop_after = 4
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path / "cut", notes=notes)
    resumed = swept(tmp_path / "cut", resume=True)
    events = _events(tmp_path / "cut")
    assert _trials(events) == _trials(_events(tmp_path / "whole"))
    assert sum(event["event"] == "probe" for event in events) == 1
    assert resumed.verdict == whole.verdict
    assert [one.attainment for one in resumed.curve] == [one.attainment for one in whole.curve]


def test_a_finished_run_resumes_without_an_engine(tmp_path: Path) -> None:
    first = swept(tmp_path)
    notes = Notes()
    again = swept(tmp_path, resume=True, notes=notes)
    assert again.verdict == first.verdict
    assert again.starts_s == first.starts_s
    assert not any("starting" in told for told in notes.told)


def test_traffic_that_one_slot_serves_is_a_plateau(tmp_path: Path) -> None:
    fast = World(step=WorldStep(a=0.001))
    verdict = swept(tmp_path, fast).verdict
    assert (verdict.kind, verdict.max_num_seqs) == ("plateau", 1)


def test_a_machine_that_cannot_serve_the_load_is_overloaded(tmp_path: Path) -> None:
    slow = World(step=WorldStep(a=0.2))
    settings = replace(SETTINGS, ceiling=4)
    outcome = swept(tmp_path, slow, settings)
    assert outcome.verdict.kind == "overloaded"
    assert outcome.confirmed is None


def test_memory_that_binds_before_the_cap_is_said(tmp_path: Path) -> None:
    # 400 tokens/s at 20 ms a step need 8 slots; each takes about 7 blocks, and 50 hold 7.
    small = World(step=WorldStep(a=0.020), kv=WorldKv(blocks=50))
    settings = replace(SETTINGS, slo=Slo(ttft_s=10.0))
    outcome = swept(tmp_path, small, settings)
    assert outcome.verdict.kind == "kv_bound"
    assert max(one.running_peak for one in outcome.curve) < 16


def test_a_slow_neighbour_changes_the_confidence_and_not_the_run(tmp_path: Path) -> None:
    noisy = WorldNoise(sigma_iter=0.15, sigma_drift=0.06, tau=60.0, sigma_start=0.04)
    outcome = swept(tmp_path, World(step=SLOTS_COST_LATE.step, noise=noisy))
    assert 0.0 <= outcome.verdict.confidence <= 1.0
    low, high = outcome.verdict.interval
    assert low <= outcome.verdict.max_num_seqs <= high


def test_a_small_budget_shortens_the_window_and_a_smaller_one_is_refused(tmp_path: Path) -> None:
    short = replace(SETTINGS, budget_s=300)
    outcome = swept(tmp_path / "short", settings=short)
    assert 5 <= outcome.window.length_s < 60
    assert sum(outcome.starts_s) + outcome.replay_s < 1.2 * 300
    with pytest.raises(UsageError, match="--budget"):
        swept(tmp_path / "none", settings=replace(SETTINGS, budget_s=130))


def test_requests_that_the_engine_cannot_take_are_left_out_and_counted(tmp_path: Path) -> None:
    # 40 blocks of 4 tokens: 160 tokens; 50 + up to 150 do not always fit.
    narrow = World(step=WorldStep(a=0.010), kv=WorldKv(blocks=40, block_size=4))
    outcome = swept(tmp_path, narrow)
    too_long = sum(one.input_length + one.output_length > 160 for one in TRAFFIC)
    assert outcome.dropped == {"over_max_model_len": too_long}
    assert any(f"{too_long} of 800 requests" in warning for warning in outcome.warnings)


def test_a_trace_that_fits_nowhere_is_refused(tmp_path: Path) -> None:
    narrow = World(kv=WorldKv(blocks=4, block_size=4))
    with pytest.raises(TraceError, match="longer than max_model_len=16"):
        swept(tmp_path, narrow)


def test_the_cost_is_told_before_the_ladder(tmp_path: Path) -> None:
    notes = Notes()
    outcome = swept(tmp_path, notes=notes)
    (told,) = [text for text in notes.told if "expect up to" in text]
    expected_s = float(told.split("expect up to ")[1].split("s of replay")[0])
    assert 0.5 * expected_s < outcome.replay_s < 1.1 * expected_s
    first = next(text for text in notes.told if text.startswith("ladder 1 "))
    assert notes.told.index(told) < notes.told.index(first)


def _events(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "journal.jsonl").read_text().splitlines()]


def _trials(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(e["purpose"], e["max_num_seqs"]) for e in events if e["event"] == "replay"]


def test_a_run_is_not_resumed_on_another_machine(tmp_path: Path) -> None:
    notes = Notes()
    notes.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, notes=notes)
    other = replace(SLOTS_COST_LATE, digest="sha256:another")
    with pytest.raises(RunError, match="was measured with device digest"):
        swept(tmp_path, other, resume=True)


def test_an_slo_that_an_idle_engine_breaks_is_not_blamed_on_the_load(tmp_path: Path) -> None:
    settings = replace(SETTINGS, slo=Slo(ttft_s=0.001), ceiling=2)
    verdict = swept(tmp_path, settings=settings).verdict
    assert verdict.kind == "overloaded"
    assert "no number of replicas can meet it" in verdict.reason


def test_a_budget_that_ends_the_ladder_makes_no_verdict_of_it(tmp_path: Path) -> None:
    settings = replace(SETTINGS, window="all", budget_s=400)
    verdict = swept(tmp_path, settings=settings).verdict
    assert (verdict.kind, verdict.interval[1]) == ("inconclusive", 32)
    assert "were not tried" in verdict.reason
