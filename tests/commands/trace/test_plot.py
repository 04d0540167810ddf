import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.commands.trace.plot import axis, bars, columns_for, underline


def test_bars_stand_on_the_ground_and_the_highest_fills_all_rows() -> None:
    assert bars([0, 1, 2, 4], height=2, ascii_only=False) == [
        "        4    █",
        "        0  ▄██",
    ]


def test_what_is_little_still_shows_and_what_is_unknown_is_a_dot() -> None:
    assert bars([0.001, None, 8], height=1, ascii_only=False) == ["        8 ▁.█"]


def test_a_terminal_without_blocks_gets_ascii() -> None:
    assert bars([4, 2], height=2, ascii_only=True) == ["        4 #", "        0 ##"]


def test_nothing_at_all_is_flat() -> None:
    assert bars([0, None], height=1, ascii_only=False) == ["        0  ."]


def test_the_axis_and_the_mark_lie_under_the_bars() -> None:
    assert axis("0s", "60s", 10) == "          0s     60s"
    assert underline(2, 5, "here") == "            ^^^ here"
    assert underline(2, 2, "here") == "            ^ here"


@pytest.mark.parametrize(("width", "count"), [(10, 20), (80, 69), (500, 80)])
def test_bars_fit_the_terminal(width: int, count: int) -> None:
    assert columns_for(width) == count


@given(st.lists(st.none() | st.integers(0, 10**12), min_size=1, max_size=30), st.integers(1, 8))
def test_every_value_is_drawn_within_its_lines(values: list[float | None], height: int) -> None:
    lines = bars(values, height=height, ascii_only=False)
    assert len(lines) == height
    assert all(len(line) <= 10 + len(values) for line in lines)
