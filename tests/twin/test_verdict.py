"""What to measure next, and what the curve says."""

from tests.support.builders import flat, hopeless, measurement
from tuner.replay.numbers import Measurement
from tuner.twin.verdict import verdict_by_windows


def curve_of(*runs: Measurement) -> dict[int, Measurement]:
    return {run.max_num_seqs: run for run in runs}


def test_the_windows_find_the_knee_of_the_article() -> None:
    """8 is throughput-limited, 16 best, 32 slower for everybody."""
    curve = curve_of(
        *(hopeless(cap) for cap in (1, 2, 4)),
        measurement(8, blocks=3, attainment=0.80, goodput_rps=8.0, e2el_s=flat(3.0)),
        measurement(16, blocks=3, e2el_s=flat(2.0), tpot_s=flat(0.020)),
        measurement(32, blocks=3, e2el_s=flat(3.0), tpot_s=flat(0.030)),
    )
    verdict = verdict_by_windows(curve, ceiling=32)
    assert (verdict.kind, verdict.max_num_seqs, verdict.interval) == ("knee", 16, (16, 16))
    assert "with 32: 100.0% meet the SLO, p95 TPOT 30.0 ms, p99 E2EL 3.00 s" in verdict.reason


def test_when_no_cap_meets_half_of_the_slo_the_load_that_would_fit_is_named() -> None:
    slow = {"attainment": 0.1, "attainment_bound": 0.4, "cut": "hopeless"}
    curve = curve_of(
        measurement(1, output_tokens_per_s=100.0, **slow),
        measurement(2, output_tokens_per_s=250.0, **slow),
    )
    verdict = verdict_by_windows(curve, ceiling=2)
    assert (verdict.kind, verdict.max_num_seqs) == ("overloaded", 2)
    assert "1 replica takes about 25% of this load, 4 take all" in verdict.reason


def test_a_run_that_the_budget_ended_early_is_inconclusive() -> None:
    curve = curve_of(measurement(1, e2el_s=flat(4.0)), measurement(2, e2el_s=flat(2.0)))
    verdict = verdict_by_windows(curve, ceiling=32, complete=False)
    assert (verdict.kind, verdict.max_num_seqs) == ("inconclusive", 2)
    assert "ended the run at 2, before the curve turned" in verdict.reason
    assert (verdict.interval, verdict.confidence) == ((1, 32), 0.0)
    cut = verdict_by_windows(curve_of(hopeless(1)), ceiling=32, complete=False)
    assert (cut.kind, cut.max_num_seqs) == ("inconclusive", 1)


def test_a_drifting_machine_is_named_and_lowers_the_confidence() -> None:
    close = curve_of(
        hopeless(1),
        measurement(8, blocks=3, e2el_s=flat(2.26)),
        measurement(16, blocks=3, e2el_s=flat(2.0)),
        measurement(32, blocks=3, e2el_s=flat(2.26)),
    )
    steady, drifted = (verdict_by_windows(close, change, ceiling=32) for change in (0.0, 0.3))
    assert any("drifted: it was 30% slower" in warning for warning in drifted.warnings)
    assert drifted.confidence < steady.confidence
