"""What a server may let in before its users wait for too long."""

import msgspec
import numpy as np

from tests.support.places import ROOT
from tests.support.profiles import profile
from tuner.engines.scheduler.state import StepLaw
from tuner.profile.evidence import admission, twin_of
from tuner.profile.profile import Admission, load

LAW = StepLaw(np.interp(np.arange(17), [0, 8, 16], [0.0, 0.006, 0.010]), 0.0001, 0.0, 0.0, 0.0)
"""A step takes 10 ms with 16 sequences, and 1 ms more for every 10 prompt tokens."""


def limits(law: StepLaw | None = LAW, *, ttft_ms: float | None = 500.0) -> Admission | None:
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
