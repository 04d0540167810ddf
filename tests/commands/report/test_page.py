"""The parts of a page: text stays text, lines keep their peaks, axes end where they should."""

import pytest

from tuner.commands.report.drawing.page import (
    Page,
    written,
)

HOSTILE = "<script>alert(1)</script>]]>\x1b[31m\u202eevil\" onload='x'&lt;"
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


def test_a_page_fetches_nothing_and_runs_nothing() -> None:
    html = written(BARE).replace("&#x27;", "'")
    assert "default-src 'none'; style-src 'sha256-" in html
    assert "<script" not in html
    assert "http" not in html.replace("http-equiv", "")
    assert "style=" not in html
