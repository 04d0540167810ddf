"""The verdict block: at most eight lines of 80 columns, the answer first."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import any_profile
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import block_of
from tuner.profile.verdict_block import MOST_LINES, WIDTH, VerdictBlock

WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=20), min_size=1, max_size=60)


def test_the_kind_of_answer_stands_at_the_right_and_rows_below() -> None:
    block = VerdictBlock("max_num_seqs 16", "knee", [("gives", "99 % in SLO")], "tuner show p.yaml")
    assert block.lines() == [
        f"max_num_seqs 16{'knee':>65}",
        "  gives    99 % in SLO",
        "  next     tuner show p.yaml",
    ]


@given(st.lists(WORDS, min_size=1, max_size=6))
def test_it_is_never_more_than_eight_lines_of_80_columns(rows: list[list[str]]) -> None:
    block = VerdictBlock("max_num_seqs 16", "knee", [("row", " ".join(one)) for one in rows], "x")
    lines = block.lines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH


def test_what_does_not_fit_ends_with_an_ellipsis() -> None:
    block = VerdictBlock(
        "t", "a", [("why", "word " * 100), ("checked", "yes")], "tuner show p.yaml"
    )
    lines = block.lines()
    assert len(lines) == MOST_LINES
    assert lines[-3].endswith(" …")
    assert lines[-2] == "  checked  yes"


def test_a_command_is_never_broken() -> None:
    command = "tuner sweep " + "--set=key=value " * 20
    assert VerdictBlock("t", "a", [], command).lines()[-1] == f"  next     {command}"


@given(any_profile())
def test_every_profile_has_a_block(profile: ServingProfile) -> None:
    lines = block_of(profile, next_="").lines()
    assert len(lines) <= MOST_LINES - 1
    assert max(map(len, lines)) <= WIDTH
