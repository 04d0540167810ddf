"""What a profile says against what is set now."""

import pytest

from tests.support.profiles import profile, step
from tuner.commands.sweep.view import _of_promise
from tuner.profile.numbers import (
    Baseline,
    Binds,
    CapNumbers,
    FrontEndSection,
    Predicted,
    SpreadSection,
)
from tuner.profile.profile import seal
from tuner.profile.schema import RequirementSection, ServingProfile
from tuner.profile.summary import block_of, waits_for
from tuner.profile.verdict_block import WIDTH

SLOWER = SpreadSection(mean=80.0, p50=76.0, p90=90.0, p95=97.0, p99=120.5)


def beside(now: Baseline) -> ServingProfile:
    """Return the test profile, which sets 16, where ``now`` is set."""
    one = profile()
    sections = ("engine", "decision", "curve", "promise", "admission", "validity", "provenance")
    return seal(**{name: getattr(one, name) for name in sections}, baseline=now, twin=None)


def numbers(attainment: float, tpot_ms: SpreadSection) -> CapNumbers:
    fields = step(16).model_dump(include=set(CapNumbers.model_fields))
    return CapNumbers.model_validate({**fields, "attainment": attainment, "tpot_ms": tpot_ms})


GIVEN = numbers(0.995, SpreadSection(mean=40.0, p50=38.0, p90=45.0, p95=48.5, p99=60.25))


def test_the_longest_wait_is_named_be_it_for_the_scheduler_or_for_the_front_end() -> None:
    """A front end that is busy half of its time keeps somebody waiting for 1 - e^0.5 / 2 of it."""
    binds = Binds(slots=0.1, kv_blocks=0.02, token_budget=0.0)
    busy = FrontEndSection(
        contention=1.0, request_ms=1.0, input_token_ms=0.0, delivery_ms=0.0, chunk_ms=0.0,
        processes=1, utilisation=0.5,
    )  # fmt: skip
    assert waits_for(binds, None) == ("slots", 0.1)
    name, share = waits_for(binds, busy) or ("", 0.0)
    assert name == "front end"
    assert share == pytest.approx(0.1756, abs=1e-4)
    assert waits_for(binds, busy.model_copy(update={"utilisation": 0.1})) == ("slots", 0.1)
    assert waits_for(Binds(slots=0.0, kv_blocks=0.0, token_budget=0.0), None) is None
    assert waits_for(None, None) is None


@pytest.mark.parametrize(
    ("now", "title", "gives", "costs"),
    [
        (
            Baseline(max_num_seqs=64, source="base", never_filled=False,
                     numbers=numbers(0.824, SLOWER)),
            "max_num_seqs 16  (now 64)",
            "99.5 % in SLO (now 82.4 %), p95 TPOT 48.5 ms (now 97.0 ms), p99 TTFT 60.2 ms",
            "nothing against now",
        ),
        (
            Baseline(max_num_seqs=256, source="default", never_filled=True, numbers=GIVEN),
            "max_num_seqs 16  (now 256)",
            "99.5 % in SLO, p95 TPOT 48.5 ms, p99 TTFT 60.2 ms",
            "nothing, equal to now: the traffic never fills its 256 slots",
        ),
        (
            Baseline(max_num_seqs=256, source="default", never_filled=False, numbers=None),
            "max_num_seqs 16  (now 256)",
            "99.5 % in SLO, p95 TPOT 48.5 ms, p99 TTFT 60.2 ms",
            "not measured: now has 256 slots, more than the 32 tried",
        ),
        (
            Baseline(max_num_seqs=16, source="base", never_filled=False, numbers=GIVEN),
            "max_num_seqs 16  (as now)",
            "99.5 % in SLO, p95 TPOT 48.5 ms, p99 TTFT 60.2 ms",
            "nothing against 8 slots",
        ),
    ],
)  # fmt: skip
def test_the_first_three_lines_hold_the_choice_against_what_is_set_now(
    now: Baseline, title: str, gives: str, costs: str
) -> None:
    lines = block_of(beside(now), next_="").lines()
    assert lines[0].startswith(f"{title}  ")
    assert f" gives {gives} costs {costs} holds " in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(
    ("confirm", "where"),
    [
        (None, ""),
        ("inproc", ""),
        ("server", "; behind a server"),
        ("plain", "; behind a plain server"),
    ],
)  # fmt: skip
def test_it_says_where_the_choice_was_confirmed(confirm: str | None, where: str) -> None:
    one = profile()
    origin = one.provenance.model_copy(update={"confirm": confirm})
    rows = dict(block_of(one.model_copy(update={"provenance": origin}), next_="").rows)
    assert rows["checked"] == f"in part: 99.5 % in SLO; 3 min 24 s of engine{where}"


@pytest.mark.parametrize(
    ("cap", "cut", "given"),
    [(8, False, " (8 slots: 48.8 %)"), (1, False, " (1 slot: 48.8 %)"),
     (8, True, " (8 slots: at most 48.8 %)")],
)  # fmt: skip
def test_it_says_what_the_next_smaller_step_would_serve(cap: int, cut: bool, given: str) -> None:
    source = "measured" if cut else "twin"
    less = step(cap).model_copy(
        update={
            "attainment": 0.231 if cut else 0.488,
            "intervals": {"attainment": (0.2, 0.488)},
            "cut": cut,
            "source": source,
        }
    )
    rows = dict(block_of(profile(curve=(less, step(16))), next_="").rows)
    assert rows["gives"].startswith(f"99.5 % in SLO{given}, p95 TPOT")
    assert ("costs" in rows) != cut  # the times of a part are no times of the whole


@pytest.mark.parametrize(
    ("load", "seen", "holds"),
    [
        (1.25, 0.98, "to 1.25 times the load: 99.5 % in SLO there"),
        (1.0, 0.865, "at this load; at 1.25 times: measured 86.5 % in SLO, forecast 99.5 %"),
        (1.0, None, "at this load; at 1.25 times this load 99.5 % in SLO by the twin alone"),
    ],
)
def test_it_says_of_a_headroom_what_was_replayed_and_not_only_what_was_foretold(
    load: float, seen: float | None, holds: str
) -> None:
    one = profile()
    told = one.promise.model_dump(include=set(CapNumbers.model_fields))
    promise = one.promise.model_copy(
        update={"predicted": [Predicted(load=each, intervals={}, **told) for each in (1.0, 1.25)]}
    )
    seen_there = {"validated_load": load, "headroom_attainment": seen}
    validity = one.validity.model_copy(update=seen_there)
    found = one.model_copy(update={"promise": promise, "validity": validity})
    assert dict(block_of(found, next_="").rows)["holds"] == holds
    lost = promise.predicted[1].model_copy(update={"attainment": 0.862})
    promise = promise.model_copy(update={"predicted": [promise.predicted[0], lost]})
    said = dict(block_of(found.model_copy(update={"promise": promise}), next_="").rows)["holds"]
    assert said.startswith("at this load; at 1.25 times")
    assert "86.2 %" in said


def test_what_is_broken_of_what_is_required_is_said_first() -> None:
    one = profile()
    kept, broken = (
        RequirementSection(text=text, at_worst=0.0, measured=None, kept=kept)
        for text, kept in (("preemptions == 0", True), ("p99 ttft <= 500ms", False))
    )
    decision = one.decision.model_copy(update={"requirements": [kept, broken]})
    rows = dict(block_of(one.model_copy(update={"decision": decision}), next_="").rows)
    assert rows["holds"].startswith("not p99 ttft <= 500ms (at worst 0 ms); but preemptions == 0")


@pytest.mark.parametrize(
    ("p95_ms", "told"), [(48.5, False), (52.0, False), (70.0, True), (40.0, True)]
)
def test_a_sweep_says_why_the_verdicts_times_are_others_than_the_rows(
    p95_ms: float, told: bool
) -> None:
    one = profile()
    assert one.promise.tpot_ms is not None  # as the row of 16 slots has it: p95 48.5 ms
    tpot_ms = one.promise.tpot_ms.model_copy(update={"p95": p95_ms})
    promise = one.promise.model_copy(update={"tpot_ms": tpot_ms})
    said = _of_promise(one.model_copy(update={"promise": promise}))
    assert said.startswith("rows: the engine at its usual speed; ") == told
    assert len(said) <= WIDTH
