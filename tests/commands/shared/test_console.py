"""What every command prints in the same way."""

import io

import pytest
from rich.console import Console

from tuner.commands.shared.console import MOST_WARNINGS, print_block, print_line, print_warnings
from tuner.profile.verdict_block import WIDTH, VerdictBlock

LONG = "the budget shortened the steps from 60s to 26s: less was seen than a larger --budget shows"


def printed(width: int = 100) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=width, color_system=None), file


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_warning_keeps_to_the_width_of_the_block_and_its_lines_below_each_other(
    width: int,
) -> None:
    console, file = printed(width)
    print_warnings(console, [LONG])
    first, second = file.getvalue().splitlines()
    assert max(len(first), len(second)) <= WIDTH
    assert first.startswith("Warning: the budget")
    assert second.startswith(" " * len("Warning: "))
    assert " ".join(file.getvalue().split()) == f"Warning: {LONG}"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_what_goes_on_is_parted_between_words_on_a_terminal_and_whole_in_a_log(width: int) -> None:
    said = f"00:42 [b]{LONG}"
    for is_terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, width=width, color_system=None, force_terminal=is_terminal)
        print_line(console, said)
        lines = file.getvalue().splitlines()
        assert " ".join(file.getvalue().split()) == said
        assert len(lines) == 1 or is_terminal
        assert max(map(len, lines)) <= width or not is_terminal
        assert all(line.startswith(" " * 6) for line in lines[1:])


def test_at_most_three_warnings_are_printed_and_how_many_more_there_are() -> None:
    console, file = printed()
    print_warnings(console, [f"number {one}" for one in range(MOST_WARNINGS + 2)], before=1)
    lines = file.getvalue().splitlines()
    assert lines[-2:] == ["Warning: number 2", "3 more warnings: --details"]
    assert len(lines) == MOST_WARNINGS + 1


def test_a_line_that_ends_with_a_backslash_is_printed_as_it_is() -> None:
    """Markup would double it, and a shell would then not join the next line."""
    console, file = printed()
    block = VerdictBlock("t", "a", [("why", "[b]late[/]")], "tuner " + "--set=key=value " * 6)
    print_block(console, block)
    assert file.getvalue().splitlines() == block.lines()
