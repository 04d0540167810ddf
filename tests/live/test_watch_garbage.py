"""Whatever a server writes at /metrics, a watch ends with a verdict or a refusal."""

import math
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.live.test_watch import CAP, RATE, WORLD
from tests.live.test_watch import promised as promised  # noqa: PLC0414 - a fixture
from tests.support.live_sim import exposition, poisson, simulated
from tuner.errors import InputError
from tuner.live.prometheus import parse
from tuner.live.watch import Promised, Watch, reason
from tuner.live.windows import WindowMaker

pytestmark = pytest.mark.attack


EVERY_S = 5.0
SERVER = simulated(WORLD, poisson(RATE, 60.0, seed=2), cap=CAP, until_s=60.0)
PAGES = [exposition({"0": SERVER.scrape(EVERY_S * place)}) for place in range(13)]
VALUE = re.compile(r" ([0-9.e+]+)$", flags=re.MULTILINE)
ODD = st.sampled_from(
    ["NaN", "+Inf", "-Inf", "-1", "0", "1e308", "1e12", "-1e300", "3", "0.5", "1e-320", "x", ""]
)


def damaged(data: st.DataObject, page: str) -> str:
    if data.draw(st.integers(0, 2)):
        return page
    kind = data.draw(st.sampled_from(["value", "line", "bound", "cut"]))
    lines = page.splitlines()
    place = data.draw(st.integers(0, len(lines) - 1))
    match kind:
        case "value":
            odd = data.draw(ODD)
            lines[place] = VALUE.sub(lambda _: f" {odd}", lines[place])
        case "bound":
            odd = data.draw(ODD)
            lines[place] = re.sub(r'le="[^"]*"', f'le="{odd}"', lines[place])
        case "line":
            del lines[place]
        case _:
            lines = lines[:place]
    return "\n".join([*lines, ""])


@settings(max_examples=16)
@given(data=st.data())
def test_no_metrics_are_worse_than_refused(promised: Promised, data: st.DataObject) -> None:
    maker, watch = WindowMaker(10.0, EVERY_S), Watch(promised)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for place, page in enumerate(PAGES):
            try:
                engines = parse(damaged(data, page), source="here")
            except InputError:
                continue
            window = maker.add(EVERY_S * place, engines)
            if window is not None:
                seen = watch.add(window)
                assert seen.slowness is None or math.isfinite(seen.slowness)
    assert reason(watch)
