"""The parts of a page: text stays text, lines keep their peaks, axes end where they should."""

import re
from pathlib import Path

import numpy as np
import pytest

from tuner.commands.report import drawing
from tuner.commands.report.drawing import axes
from tuner.commands.report.drawing.chart import Chart, Line, drawn
from tuner.commands.report.drawing.html import tag
from tuner.commands.report.drawing.page import (
    Page,
    written,
)
from tuner.commands.report.drawing.thin import steps, thinned

HOSTILE = "<script>alert(1)</script>]]>\x1b[31m\u202eevil\" onload='x'&lt;"
STYLE = Path(drawing.__file__).with_name("style.css")
BARE = Page(kind="k", title="t", rows=[], next="", sections=[])


@pytest.mark.attack
def test_text_of_others_stays_text_wherever_it_stands() -> None:
    page = Page(
        kind=HOSTILE,
        title=HOSTILE,
        aside=HOSTILE,
        rows=[(HOSTILE, HOSTILE)],
        next=HOSTILE,
        sections=[],
        warnings=[HOSTILE],
    )
    html = written(page)
    assert "<script" not in html
    assert not set("\x1b\u202e") & set(html)
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;]]&gt;\\x1b[31m\\u202eevil&quot;") >= 8


@pytest.mark.attack
def test_an_attribute_cannot_be_left() -> None:
    assert tag("a", href='"><script>') == '<a href="&quot;&gt;&lt;script&gt;"></a>'


def test_a_page_fetches_nothing_and_runs_nothing() -> None:
    html = written(BARE).replace("&#x27;", "'")
    assert "default-src 'none'; style-src 'sha256-" in html
    assert "<script" not in html
    assert "http" not in html.replace("http-equiv", "")
    assert "style=" not in html


def test_a_thinned_line_keeps_its_peaks_and_its_ends() -> None:
    x = np.linspace(0.0, 99_999.0, 100_000)
    y = np.zeros(100_000)
    y[54_321], y[77_777] = 9.0, -9.0
    few_x, few_y = thinned(x, y, most=2000)
    assert len(few_x) <= 2000
    assert (few_y.max(), few_y.min()) == (9.0, -9.0)
    assert (few_x[0], few_x[-1]) == (0.0, 99_999.0)
    assert (np.diff(few_x) > 0).all()


def test_a_short_line_stays_as_it_is_but_for_what_is_no_number() -> None:
    few_x, few_y = thinned(np.array([1.0, 2.0, 3.0]), np.array([4.0, np.nan, 6.0]), most=10)
    assert (few_x.tolist(), few_y.tolist()) == ([1.0, 3.0], [4.0, 6.0])


def test_a_stepped_line_keeps_each_value_until_the_next() -> None:
    x, y = steps(np.array([0.0, 1.0, 2.0]), np.array([5.0, 6.0, 7.0]))
    assert list(zip(x.tolist(), y.tolist(), strict=True)) == [
        (0, 5),
        (1, 5),
        (1, 6),
        (2, 6),
        (2, 7),
    ]


def test_times_that_differ_by_orders_have_a_logarithmic_axis() -> None:
    axis = axes.times([0.02, 1900.0], axes.seconds)
    assert axis.is_log
    assert [text for _, text in axis.ticks] == [
        "10 ms",
        "100 ms",
        "1 s",
        "10 s",
        "100 s",
        "1,000 s",
    ]
    assert axis.place(0.01) == 0.0


def test_times_alike_have_an_axis_from_nothing() -> None:
    axis = axes.times([0.020, 0.060], axes.seconds)
    assert [text for _, text in axis.ticks] == ["0", "20 ms", "40 ms", "60 ms"]


def test_a_line_is_parted_where_a_value_is_missing() -> None:
    x, y = axes.linear([0, 10], axes.whole), axes.linear([0, 10], axes.whole)
    line = Line([0.0, 1.0, 2.0, 3.0], [1.0, float("nan"), 2.0, 3.0])
    assert drawn(Chart("said", x, y, [line])).count("M") == 2


@pytest.mark.parametrize("caps", [[1], [1, 2, 4], [2**n for n in range(11)]])
def test_the_choice_is_always_named_on_the_axis(caps: list[int]) -> None:
    axis = axes.caps(caps, chosen=caps[-1] + 1, label="")
    assert f"{caps[-1] + 1:,}" in [text for _, text in axis.ticks]
    assert len(axis.ticks) <= 8


def test_every_rule_of_the_style_is_closed_before_the_next() -> None:
    """A rule left open swallows those after it, and charts lose their colors."""
    depth = 0
    for mark in re.findall(r"[{}]", STYLE.read_text(encoding="utf-8")):
        depth += 1 if mark == "{" else -1
        assert 0 <= depth <= 2
    assert depth == 0
