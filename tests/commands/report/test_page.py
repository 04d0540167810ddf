"""The parts of a page: text stays text, lines keep their peaks, axes end where they should."""

import base64
import hashlib
import re
import tomllib
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from tests.support.places import ROOT
from tuner.commands.report import drawing
from tuner.commands.report.drawing import axes
from tuner.commands.report.drawing.chart import Chart, Line, drawn
from tuner.commands.report.drawing.html import tag
from tuner.commands.report.drawing.page import (
    Figure,
    File,
    Page,
    PageSection,
    csv_of,
    written,
)
from tuner.commands.report.drawing.thin import steps, thinned

HOSTILE = "<script>alert(1)</script>]]>\x1b[31m\u202eevil\" onload='x'&lt;"
BARE = Page(kind="k", title="t", rows=[], next="", sections=[])


@pytest.mark.attack
def test_text_of_others_stays_text_wherever_it_stands() -> None:
    page = Page(
        kind=HOSTILE,
        title=HOSTILE,
        now=HOSTILE,
        aside=HOSTILE,
        rows=[(HOSTILE, HOSTILE)],
        next=HOSTILE,
        sections=[],
        warnings=[HOSTILE],
    )
    html = written(page)
    assert html.count("<script") == html.count("</script") == 1
    assert not set("\x1b\u202e") & set(html)
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;]]&gt;\\x1b[31m\\u202eevil&quot;") >= 8


@pytest.mark.attack
def test_an_attribute_cannot_be_left() -> None:
    assert tag("a", href='"><script>') == '<a href="&quot;&gt;&lt;script&gt;"></a>'


@pytest.mark.attack
def test_data_to_download_cannot_leave_its_link_and_no_cell_is_a_formula() -> None:
    file = File("a.csv", "", "text/csv", csv_of(["name"], [["=cmd|' /C calc'!A0"], ['"><script>']]))
    html = written(replace(BARE, files=[file]))
    assert html.count("<script") == 1
    assert "%27%3Dcmd" in html or "%27=cmd" in html


def test_a_page_fetches_nothing_and_runs_what_its_policy_names_alone() -> None:
    html = written(BARE).replace("&#x27;", "'")
    before, script, after = re.split("</?script>", html)
    policy = re.findall(r"([a-z]+)-src ('[^;]+')", html)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert {"default": "'none'", "script": f"'sha256-{digest}'"}.items() <= dict(policy).items()
    assert "http" not in (before + after).replace("http-equiv", "")
    assert "style=" not in before + after
    for word in ("fetch(", "XMLHttpRequest", "WebSocket", "eval(", "import(", "innerHTML"):
        assert word not in script


@pytest.mark.attack
def test_what_others_name_a_line_is_text_to_the_script_too() -> None:
    x, y = axes.linear([0.0, 1.0], axes.whole), axes.linear([0.0, 2.0], axes.whole)
    chart = drawn(Chart(HOSTILE, x, y, [Line([0, 1], [0, 2], label=HOSTILE)]))
    assert "<script" not in chart
    assert 'data-name="&lt;script&gt;alert(1)' in chart


def test_the_licence_of_what_is_vendored_is_in_the_package_and_on_every_page() -> None:
    vendored = ROOT / "tuner" / "commands" / "report" / "drawing" / "uplot"
    licence = (vendored / "LICENSE").read_text(encoding="utf-8")
    assert licence.startswith("The MIT License")
    html = written(BARE)
    assert all(line in html for line in licence.splitlines())
    made = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert made["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["tuner"]}
    of_wheel = [ROOT / name for name in made["project"]["license-files"]]
    assert vendored / "LICENSE" in of_wheel


def test_every_way_of_writing_a_value_is_known_to_the_script() -> None:
    script = (files(drawing) / "zoom.js").read_text(encoding="utf-8")
    known = re.search(r"const TOLD = \{(.*?)\n  \};", script, re.DOTALL)
    assert known is not None
    assert re.findall(r"^    (\w+):", known[1], re.MULTILINE) == [one.__name__ for one in axes.TOLD]


def test_a_chart_says_where_its_axes_begin_and_end_so_that_values_can_be_read_back() -> None:
    x, y = axes.linear([0.0, 10.0], axes.whole), axes.linear([0.0, 2.0], axes.seconds)
    text = drawn(Chart("said", x, y, [Line([0, 5, 10], [0, 1.5, 2])]))
    place = {name: re.search(rf'data-{name}="([^"]+)"', text) for name in "xy"}
    (x_axis, y_axis) = (found[1].split() for found in place.values() if found)
    assert (x_axis[2:], y_axis[2:]) == (
        ["0.0", "10.0", "linear", "whole"], ["0.0", "2.0", "linear", "seconds"],
    )  # fmt: skip
    path = re.search(r'd="M(\S+) (\S+)l(\S+) (\S+)l(\S+) ([^"]+)"', text)
    assert path is not None
    places = [float(one) for one in path.groups()]
    at = (places[0] + places[2], places[1] + places[3])
    for value, here, axis in zip((5.0, 1.5), at, (x_axis, y_axis), strict=True):
        begin, end, low, high = map(float, axis[:4])
        assert low + (here - begin) / (end - begin) * (high - low) == pytest.approx(value, rel=1e-3)


def test_a_chart_fills_the_window_where_its_link_is_followed_and_another_leads_back() -> None:
    x, y = axes.linear([0.0, 1.0], axes.whole), axes.linear([0.0, 2.0], axes.whole)
    charts = [Figure("Waiting", Chart(said, x, y, [Line([0, 1], [0, 2])])) for said in ("a", "b")]
    html = written(replace(BARE, sections=[PageSection("S", "", [charts])]))
    places = re.findall(r'<figure id="(chart-[0-9a-f]{12})">', html)
    assert len(set(places)) == 2
    for place in places:
        assert f'href="#{place}" class="larger"' in html
        assert f'href="#{place}-here" class="smaller"' in html
        assert f'<figcaption id="{place}-here">' in html


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
