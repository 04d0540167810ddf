"""The forms of a page: text stays text, lines keep their peaks, numbers have one form."""

import re

import numpy as np
import pytest

from tuner.views.html import figure, page_html
from tuner.views.over_time import thinned
from tuner.views.page import Chart, Column, Mark, Page, Section, Table
from tuner.views.text import print_page

HOSTILE = "<script>alert(1)</script>]]>\x1b[31m\u202eevil\" onload='x'&lt;[bold]\\"
TABLE = Table([Column(HOSTILE, HOSTILE), Column("n", "n", "count")], [[HOSTILE, HOSTILE]], HOSTILE)
CHART = Chart(HOSTILE, [1.0], [2.0], marks=[Mark(1.0, HOSTILE)])
PAGE = Page(
    subject=HOSTILE,
    title=HOSTILE,
    aside=HOSTILE,
    facts=[(HOSTILE, HOSTILE)],
    sections=[Section(HOSTILE, HOSTILE, [CHART], [TABLE])],
    details=[HOSTILE],
    warnings=[HOSTILE],
    run_dir=HOSTILE,
    next=HOSTILE,
)


@pytest.mark.attack
def test_text_of_others_stays_text_on_a_page() -> None:
    html = page_html(PAGE)
    assert "<script" not in html
    assert not set("\x1b\u202e") & set(html)
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;]]&gt;\\x1b[31m\\u202eevil&quot;") > 18


@pytest.mark.attack
@pytest.mark.parametrize("columns", ["40", "200"])
def test_text_of_others_stays_text_on_a_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_page(PAGE, details=True)
    printed = capsys.readouterr().out
    assert "[bold]" in printed
    assert not re.findall("\x1b\\[31m|\u202e", printed)


def test_a_page_fetches_nothing_and_runs_nothing() -> None:
    html = page_html(Page(subject="s", title="t")).replace("&#x27;", "'")
    assert "default-src 'none'; style-src 'sha256-" in html
    assert not re.search("<script|style=|src=", html.replace("default-src=", ""))
    assert "http" not in html.replace("http-equiv", "")


def test_all_times_of_a_column_have_one_unit() -> None:
    column = Column("ttft_s", "TTFT p99", "time")
    long = Table([column], [[0.5], [12.0]])
    assert long.shown() == [("TTFT p99 s", "time", ["0.500", "12.0"])]
    short = Table([column], [[0.5], [None]])
    assert short.shown() == [("TTFT p99 ms", "time", ["500", "-"])]


def test_a_thinned_line_keeps_its_peaks() -> None:
    x, y = np.linspace(0.0, 99_999.0, 100_000), np.zeros(100_000)
    y[54_321], y[77_777], y[5] = 9.0, -9.0, np.nan
    few_x, few_y = thinned(x, y)
    assert len(few_x) <= 2000
    assert (few_y.max(), few_y.min()) == (9.0, -9.0)
    assert few_x[np.argmax(few_y)] == pytest.approx(54_321, abs=100)


@pytest.mark.parametrize(
    ("y", "ticks"),
    [
        ([0.02, 0.06], ["0", "20 ms", "40 ms", "60 ms"]),
        ([0.02, 1900.0], ["10 ms", "100 ms", "1 s", "10 s", "1,000 s"]),
        ([None], ["0"]),
        ([], ["0"]),
    ],
)
def test_times_that_differ_by_orders_have_a_logarithmic_axis(
    y: list[float | None], ticks: list[str]
) -> None:
    chart = Chart("t", [1.0, 2.0][: len(y)], y, "time", by_cap=True)
    drawn = re.findall(r">([^<>]*)</text>", figure(chart))
    assert set(ticks) <= set(drawn)


def test_a_line_is_parted_where_a_value_is_missing_and_every_cap_is_a_tick() -> None:
    caps = [float(2**n) for n in range(11)]
    y: list[float | None] = [1.0] * 11
    y[4] = None
    drawn = figure(Chart("t", caps, y, by_cap=True, marks=[Mark(1024.0, "1,024")]))
    (line,) = re.findall(r'class="line" d="([^"]*)"', drawn)
    assert line.count("M") == 2
    assert ">1,024</text>" in drawn
