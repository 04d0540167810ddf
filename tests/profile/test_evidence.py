"""The twin beside a profile, and out of its file again."""

import json
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.places import ROOT
from tests.support.profiles import profile, resealed
from tuner.engines.scheduler.state import StepLaw
from tuner.errors import ProfileError
from tuner.profile.evidence import MOST_STORED, StoredTwin, admission, pack, twin_of, unpack
from tuner.profile.profile import Admission, load, save
from tuner.replay.records import e2el_s
from tuner.traffic.constants import PRINTED_DRAWS
from tuner.traffic.slo import Slo
from tuner.twin.decide import choose
from tuner.twin.forecast import Forecast
from tuner.twin.law import fit_law
from tuner.twin.samples import Loads, Machine, ask, draws_of
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
    fitted = fit_law([log], max_num_seqs=8)
    return Forecast(
        fitted=fitted,
        shape=SHAPE,
        loads=Loads(traffic),
        slo=SLO,
        length_s=requests / 5,
        choice=choose(
            Loads(traffic), fitted.laws[:40], SHAPE, SLO, (4, 8), seen=fitted.extrapolated_from
        ),
        machine=Machine(np.array([1.0, 1.25, 0.5]), 0.03),
    )


def again(item: Forecast) -> StoredTwin:
    return unpack(pack(item), source="p.evidence")


def test_what_is_stored_answers_as_the_twin_did() -> None:
    item = view()
    result = again(item)
    assert (result.shape, result.length_s) == (SHAPE, item.length_s)
    before, after = (
        e2el_s(simulate(traffic, law, SHAPE, max_num_seqs=8).requests)
        for traffic, law in ((item.traffic, item.fitted.law), (result.traffic, result.law))
    )
    tail_s = np.quantile(before, 0.99)
    assert np.quantile(after, 0.99) == pytest.approx(tail_s, rel=1e-3)
    assert len(result.laws) == PRINTED_DRAWS
    tails = []
    for law in result.laws:
        drawn = simulate(item.traffic, law, SHAPE, max_num_seqs=8).requests
        tails.append(np.quantile(e2el_s(drawn), 0.99))
    assert min(tails) < tail_s < max(tails)
    at_s = item.traffic.arrival_s - item.traffic.arrival_s[0]
    assert np.abs(result.traffic.arrival_s - at_s).max() < 1e-3
    assert np.array_equal(result.traffic.output_length, item.traffic.output_length)


def test_a_law_of_larger_batches_than_are_asked_for_is_stored_up_to_those() -> None:
    item = view()
    fitted = replace(
        item.fitted, law=item.fitted.law._replace(decode_s=item.fitted.law.decode_s[:6])
    )
    assert fitted.knots[-1] > 5
    result = again(replace(item, fitted=fitted))
    assert result.law.decode_s == pytest.approx(fitted.law.decode_s, rel=1e-5)


def test_what_is_stored_promises_what_was_promised() -> None:
    """So that plan, watch and verify say the same as the profile."""
    item = view()
    result = again(item)
    assert result.machine.slowdown.tolist() == [1.0, 1.25, 0.5]
    assert result.machine.speed_sd == 0.03
    draws = draws_of(result.laws, result.machine, result.traffic)
    same = ask(draws, Loads(result.traffic), (8,), result.shape, SLO)
    for name, ends in item.promised((8,)).intervals(8).items():
        if name != "goodput_rps":
            assert same.intervals(8)[name] == pytest.approx(ends, rel=0.02, abs=1e-3), name


def test_what_is_stored_is_as_sure_of_the_choice_as_the_sweep_was() -> None:
    each, slo = view(50), Slo(tpot_s=0.0125)
    laws, seen = each.fitted.laws, each.fitted.extrapolated_from
    sweep = choose(Loads(each.traffic), laws, SHAPE, slo, (1, 2, 4), seen=seen)
    assert 0.8 < sweep.confidence < 1
    assert again(each).choice(each.traffic, slo, (1, 2, 4), headroom=1).rightness == sweep.rightness


def test_of_long_traffic_the_busiest_stretch_is_stored() -> None:
    """The hour asks for 200 tokens a second, the night for 2 of twice as long requests."""
    hour = [(float(at_s), 100, 100) for at_s in range(MOST_STORED)]
    night = [(100_000.0 + 200 * each, 200, 200) for each in range(MOST_STORED)]
    item = replace(view(), loads=Loads(Traffic.of([*hour, *night])), length_s=1e6)
    result = again(item)
    assert (result.length_s, result.traffic.arrival_s[0]) == (MOST_STORED - 1, 0.0)
    assert set(result.traffic.input_length.tolist()) == {100}
    assert len(pack(view(MOST_STORED + 500))) < 200_000


def edited(content: bytes, **parts: bytes) -> bytes:
    """Return the archive with other content of some of its files."""
    file = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as old, zipfile.ZipFile(file, "w", 8) as new:
        for name in old.namelist():
            new.writestr(name, parts.get(name.partition(".")[0], old.read(name)))
    return file.getvalue()


def array(values: np.ndarray) -> bytes:
    file = BytesIO()
    np.save(file, values)
    return file.getvalue()


CONTENT = pack(view(50))


@pytest.mark.attack
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        CONTENT[:-50],
        edited(CONTENT, facts=b"[" * 99_999),
        edited(CONTENT, facts=json.dumps({"shape": {}}).encode()),
        edited(CONTENT, sizes=array(np.array([0, 8, 4]))),
        edited(CONTENT, sizes=array(np.array([0, 10**12]))),
        edited(CONTENT, sizes=array(np.zeros(0)), laws=array(np.ones((2, 5)))),
        edited(CONTENT, slowdown=array(np.zeros(8)).replace(b"(8,)", b"(10000000000000,)")[:128]),
        edited(CONTENT, slowdown=array(np.array([0.0, np.nan]))),
        edited(CONTENT, traffic=array(np.zeros((3, 9)))),
        edited(CONTENT, traffic=array(np.zeros((4, 2**22)))),
        edited(CONTENT, traffic=array(np.array([{}], object))),
    ],
    ids=["empty", "nonsense", "cut", "deep", "facts", "order", "huge", "no sizes", "vast",
         "nan", "short", "bomb", "pickle"],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_its_place(content: bytes) -> None:
    with pytest.raises(ProfileError, match=r"p\.evidence: makes no sense"):
        unpack(content, source="p.evidence")


def test_the_evidence_is_needed_beside_the_page_and_must_be_its_own(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    save(resealed(profile(), evidence=CONTENT), path)
    page = load(path)
    assert twin_of(page, path, cure="").shape == SHAPE
    beside = tmp_path / "p.evidence"
    beside.write_bytes(pack(view(60)))
    with pytest.raises(ProfileError, match=r"p\.evidence: is not the one that this profile"):
        twin_of(page, path, cure="")
    beside.unlink()
    with pytest.raises(ProfileError, match=r"p\.evidence: no such file") as missing:
        twin_of(page, path, cure="")
    assert "Copy it from" in missing.value.hint
    with pytest.raises(ProfileError, match="the windows alone decided") as without:
        twin_of(profile(), path, cure="Sweep again.")
    assert without.value.hint == "Sweep again."


STEP = StepLaw(np.interp(np.arange(17), [0, 8, 16], [0.0, 0.006, 0.010]), 0.0001, 0.0, 0.0, 0.0)
"""A step takes 10 ms with 16 sequences, and 1 ms more for every 10 prompt tokens."""


def limits(law: StepLaw | None = STEP, *, ttft_ms: float | None = 500.0) -> Admission | None:
    result = profile()
    slo = msgspec.structs.replace(result.decision.slo, ttft_ms=ttft_ms)
    decision = msgspec.structs.replace(result.decision, slo=slo)
    return admission(decision, result.promise, law, token_budget=116)


def test_what_is_let_in_is_what_is_served_within_the_ttft_limit() -> None:
    """100 of 116 tokens prefill in 10 + 10 ms: 5000 a second. 100 output tokens of 10 ms hold a
    slot for 1 s: half of 16 come free in half a second."""
    result = limits()
    assert result is not None
    assert (result.max_num_queued_tokens, result.max_num_queued_reqs) == (2500, 24)
    assert result.reasons[0] == (
        "max_num_queued_tokens 2500: a TTFT limit of 500 ms x 5000 prompt tokens/s beside 16 "
        "decoding sequences"
    )
    stricter = limits(ttft_ms=100.0)
    assert stricter is not None
    assert stricter.max_num_queued_tokens == 500
    assert limits(ttft_ms=None) is None
    assert limits(None) is None


def test_the_shipped_profiles_limits_follow_from_its_own_numbers() -> None:
    """They are a function of the rest, so nobody can have put them there by hand."""
    path = ROOT / "profiles" / "translation-tiny-cpu.yaml"
    shipped = load(path)
    twin = twin_of(shipped, path, cure="")
    budget = twin.shape.max_num_batched_tokens
    again = admission(shipped.decision, shipped.promise, twin.law, token_budget=budget)
    assert shipped.admission == again
