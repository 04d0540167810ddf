"""The verdict block: at most eight lines of 80 columns, the answer first."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import any_profile
from tuner.profile.schema import ServingProfile
from tuner.profile.summary import block_of
from tuner.profile.verdict_block import MOST_LINES, WIDTH, VerdictBlock, wrapped

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


def test_a_number_and_its_unit_stand_on_one_line() -> None:
    most = "x" * 65
    assert wrapped(f"{most} 10 %") == [most, "10 %"]
    assert wrapped(f"{most} 9 ms") == [most, "9 ms"]


def test_what_has_no_part_that_fits_ends_with_an_ellipsis() -> None:
    block = VerdictBlock(
        "t", "a", [("why", "word " * 100), ("checked", "yes")], "tuner show p.yaml"
    )
    lines = block.lines()
    assert len(lines) == MOST_LINES
    assert lines[-3].endswith(" …")
    assert lines[-2] == "  checked  yes"


def test_of_a_reason_that_is_too_long_whole_clauses_are_said() -> None:
    rows = [(name, "yes") for name in ("gives", "costs", "holds", "checked", "rests")]
    why = "32 gives -23.3% goodput, +122% p95 TPOT, +94% p99 E2EL; 8 gives -51.2% goodput"
    lines = VerdictBlock("t", "a", [*rows, ("why", why)], "tuner show p.yaml").lines()
    assert len(lines) == MOST_LINES
    assert lines[-2] == "  why      32 gives -23.3% goodput, +122% p95 TPOT, +94% p99 E2EL"


def test_of_a_clause_that_is_too_long_whole_parts_are_said_and_no_bracket_is_left_open() -> None:
    rows = [(name, "yes") for name in ("costs", "holds", "why", "checked", "rests")]
    gives = (
        "99.5 % in SLO (now 82.4 %), p95 TPOT 48.5 ms (now 97.0 ms, or many more than that), p99"
    )
    lines = VerdictBlock("t", "a", [("gives", gives), *rows], "tuner show p.yaml").lines()
    assert lines[1] == "  gives    99.5 % in SLO (now 82.4 %)"


def test_of_the_aside_there_is_what_fits_beside_a_title_that_is_whole() -> None:
    title = "breaks p99 ttft <= 500ms: max_num_seqs 16  (now 128)"
    (head,) = VerdictBlock(title, "still rising, confidence 0.97", [], "").lines()
    assert head == f"{title}{'still rising':>28}"
    (head,) = VerdictBlock(f"{title}{'x' * 20}", "still rising, confidence 0.97", [], "").lines()
    assert head == f"{title}{'x' * 20}"


def test_the_reason_gives_way_to_what_follows_from_it() -> None:
    why, checked = "8 gives less; " * 6 + "and 32", "in part: 99 % in SLO, 12 of 12 as foretold"
    rows = [("why", why), ("checked", f"{checked}, {'too few ' * 5}")]
    rows += [(name, "yes") for name in ("gives", "costs", "holds")]
    lines = VerdictBlock("t", "a", rows, "tuner show p.yaml").lines()
    assert len(lines) == MOST_LINES
    assert lines[2].startswith(f"  checked  {checked}")
    assert lines[3].startswith("           ")


def test_a_long_command_is_broken_where_a_shell_joins_it() -> None:
    """It keeps to the width, and pasted as it stands it is the same command."""
    command = "tuner watch profile.yaml --url=http://127.0.0.1:8000 --canary=http://127.0.0.1:8001"
    lines = VerdictBlock("t", "a", [("why", "late")], f"{command} --for=240s").lines()
    assert lines[-2:] == [
        "  next     tuner watch profile.yaml --url=http://127.0.0.1:8000 \\",
        "           --canary=http://127.0.0.1:8001 --for=240s",
    ]


def test_a_command_is_whole_where_the_rows_leave_no_line_for_more() -> None:
    rows = [(str(number), "row") for number in range(6)]
    command = "tuner sweep " + "--set=key=value " * 20
    lines = VerdictBlock("t", "a", rows, command).lines()
    assert (len(lines), lines[-1]) == (MOST_LINES, f"  next     {command}")


@given(any_profile())
def test_every_profile_has_a_block(profile: ServingProfile) -> None:
    lines = block_of(profile, next_="").lines()
    assert len(lines) <= MOST_LINES - 1
    assert max(map(len, lines)) <= WIDTH
