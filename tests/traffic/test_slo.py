"""The SLO: read, met, derived."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import UsageError
from tuner.traffic.slo import Slo, fit_unloaded, parse_slo


@pytest.mark.parametrize(
    "text",
    [
        *("ttft=500", "latency=5s", "ttft=0ms", "ttft=1e9s", "ttft=--1s", "ttft=1s,ttft=2s"),
        *("", "ttft=nans"),
    ],
)
def test_a_limit_that_is_unclear_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--slo: cannot read"):
        parse_slo(text)


@given(st.text())
def test_no_text_makes_reading_an_slo_fail_in_another_way(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse_slo(text)


def test_every_limit_must_be_met_and_one_token_has_no_tpot_to_break() -> None:
    slo = Slo(ttft_s=1, tpot_s=0.1, e2el_s=5)
    good = {"input_length": 1, "ttft_s": 1.0, "tpot_s": 0.1, "e2el_s": 5.0}
    assert not slo.broken_by(**good)
    assert not slo.broken_by(**{**good, "tpot_s": math.nan})
    for name in ("ttft_s", "tpot_s", "e2el_s"):
        assert slo.broken_by(**{**good, name: good[name] * 1.01})


def test_the_unloaded_ttft_is_fitted_by_prompt_length() -> None:
    fitted = fit_unloaded([100, 200, 300], [0.02, 0.03, 0.04], [0.01, 0.03, 0.02])
    assert fitted.ttft_s == pytest.approx(0.01)
    assert fitted.ttft_s_per_input_token == pytest.approx(0.0001)
    assert fitted.tpot_s == 0.02
