"""The twin in a profile, and out of it again."""

import base64
import zlib
from dataclasses import replace

import numpy as np
import pytest

from tuner.engines.scheduler.state import StepLaw
from tuner.errors import ProfileError
from tuner.profile.stored_twin import MOST_STORED, restored, stored
from tuner.traffic.slo import Slo
from tuner.twin.choice import weigh
from tuner.twin.draws import PRINTED, MachineHistory, promised
from tuner.twin.forecast import Forecast
from tuner.twin.law import Segment, fit_law
from tuner.twin.load import Loads
from tuner.twin.simulation import EngineShape, Traffic, simulate

SHAPE = EngineShape(
    max_num_batched_tokens=2048, block_size=16, kv_blocks=4000, max_model_len=10_000, lag_s=0.003
)
LAW = StepLaw(np.linspace(0.010, 0.018, 9), 1e-5, 0.0, 0.0, 1e-7)
SLO = Slo(ttft_s=1.0)


def view(requests: int = 500) -> Forecast:
    rng = np.random.default_rng(0)
    arrivals = np.sort(rng.uniform(0, requests / 5, requests)).tolist()
    traffic = Traffic.of((at_s, 50, int(rng.integers(50, 150))) for at_s in arrivals)
    log = simulate(traffic, LAW, SHAPE, max_num_seqs=8, log=True).iterations
    log["duration_s"] *= np.exp(rng.normal(0, 0.05, len(log)))
    fitted = fit_law([Segment(log, 0.0, 0)], max_num_seqs=8)
    return Forecast(
        fitted=fitted,
        shape=SHAPE,
        loads=Loads(traffic),
        slo=SLO,
        length_s=requests / 5,
        hit_share=0.25,
        stalled_share=0.0,
        weighed=weigh(Loads(traffic), fitted, SHAPE, SLO, (4, 8)),
        machine=MachineHistory(np.array([1.0, 1.25, 0.5]), 0.03, (0.25,), (-0.125,)),
    )


def test_what_is_stored_answers_as_the_twin_did() -> None:
    one = view()
    again = restored(stored(one), source="p.yaml")
    assert again.shape == SHAPE
    assert again.length_s == one.length_s
    before, after = (
        simulate(traffic, law, SHAPE, max_num_seqs=8)
        for traffic, law in ((one.traffic, one.fitted.law), (again.traffic, again.law))
    )
    assert np.quantile(after.e2el_s, 0.99) == pytest.approx(
        np.quantile(before.e2el_s, 0.99), rel=1e-3
    )
    assert len(again.laws) == PRINTED
    tails = [np.quantile(simulate(one.traffic, law, SHAPE, max_num_seqs=8).e2el_s, 0.99)
             for law in again.laws]  # fmt: skip
    assert min(tails) < np.quantile(before.e2el_s, 0.99) < max(tails)


def test_a_law_of_larger_batches_than_are_asked_for_is_stored_up_to_those() -> None:
    one = view()
    fitted = replace(one.fitted, law=one.fitted.law._replace(decode_s=one.fitted.law.decode_s[:6]))
    assert fitted.knots[-1] > 5
    again = restored(stored(replace(one, fitted=fitted)), source="p.yaml")
    assert again.law.decode_s == pytest.approx(fitted.law.decode_s, rel=1e-5)


def test_what_is_stored_promises_what_was_promised() -> None:
    """So that plan, watch and verify say the same as the profile."""
    one = view()
    again = restored(stored(one), source="p.yaml")
    assert again.machine.slowdown.tolist() == [1.0, 1.25, 0.5]
    assert again.machine.speed_sd == 0.03
    assert (again.machine.ttft_errors, again.machine.tpot_errors) == ((0.25,), (-0.125,))
    said = one.promised(8)
    draws = again.draws([again.traffic])
    same = promised([again.traffic], draws, again.shape, SLO, max_num_seqs=8)
    for name, ends in said.ranges.items():
        assert same.ranges[name] == pytest.approx(ends, rel=0.02, abs=1e-3), name


def test_what_is_stored_is_as_sure_of_the_choice_as_the_sweep_was() -> None:
    one, slo = view(50), Slo(tpot_s=0.0125)
    sweep = weigh(Loads(one.traffic), one.fitted, SHAPE, slo, (1, 2, 4), draws=PRINTED)
    again = restored(stored(one), source="p.yaml").weighed(one.traffic, slo, (1, 2, 4), headroom=1)
    assert 0.9 < sweep.confidence < 1
    assert again.rightness == sweep.rightness


def test_of_long_traffic_the_busiest_stretch_is_stored() -> None:
    one = view(MOST_STORED + 500)
    section = stored(one)
    again = restored(section, source="p.yaml")
    assert len(again.traffic) == MOST_STORED
    assert again.traffic.arrival_s[0] == 0.0
    assert section.length_s == pytest.approx(again.traffic.arrival_s[-1], rel=1e-3)
    assert len(section.data) < 60_000


def test_a_busy_hour_is_stored_and_not_a_night_of_long_requests() -> None:
    """The hour asks for 200 tokens a second, the night for 2 of twice as long requests."""
    hour = [(float(at_s), 100, 100) for at_s in range(MOST_STORED)]
    night = [(100_000.0 + 200 * one, 200, 200) for one in range(MOST_STORED)]
    one = replace(view(), loads=Loads(Traffic.of([*hour, *night])), length_s=1e6)
    section = stored(one)
    assert section.length_s == MOST_STORED - 1
    assert set(restored(section, source="p.yaml").traffic.input_length.tolist()) == {100}


@pytest.mark.parametrize(
    "data", ["", "!", base64.b64encode(b"nonsense").decode(), "eJwDAAAAAAE="], ids=str
)
def test_data_that_makes_no_sense_is_refused_with_its_place(data: str) -> None:
    section = stored(view()).model_copy(update={"data": data})
    with pytest.raises(ProfileError, match=r"p\.yaml: twin\.data: makes no sense"):
        restored(section, source="p.yaml")


def test_data_of_another_law_is_refused() -> None:
    section = stored(view())
    law = section.law.model_copy(update={"decode_seqs": [0, 8], "decode_s": [0.01, 0.02]})
    with pytest.raises(ProfileError, match="do not fit each other"):
        restored(section.model_copy(update={"law": law}), source="p.yaml")


def test_the_traffic_is_the_same_to_the_millisecond() -> None:
    one = view()
    again = restored(stored(replace(one)), source="p.yaml")
    first_s = one.traffic.arrival_s[0]
    assert np.abs(again.traffic.arrival_s - (one.traffic.arrival_s - first_s)).max() < 1e-3
    assert np.array_equal(again.traffic.output_length, one.traffic.output_length)


@pytest.mark.attack
def test_data_that_unpacks_without_end_and_sizes_out_of_order_are_refused() -> None:
    section = stored(view())
    bomb = base64.b64encode(zlib.compress(b"\1" * 2**26)).decode()
    with pytest.raises(ProfileError, match="makes no sense"):
        restored(section.model_copy(update={"data": bomb}), source="p.yaml")
    sizes = section.law.decode_seqs
    law = section.law.model_copy(update={"decode_seqs": [*sizes[:-2], sizes[-1], sizes[-2]]})
    with pytest.raises(ProfileError, match="do not fit each other"):
        restored(section.model_copy(update={"law": law}), source="p.yaml")
