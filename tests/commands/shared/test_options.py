"""A command's options: one dataclass, read by typer, by the command and by the journal."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tuner.commands.shared.options import IN_PLAN, command, in_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Cook something."""

    dish: Annotated[str, typer.Argument(help="What to cook.")]
    guests: Annotated[int, typer.Option(min=1, help="How many eat."), IN_PLAN] = 2
    extras: Annotated[tuple[Path, ...], typer.Option("--extra", help="Beside it.")] = ()
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False


SEEN: list[Order] = []


def cook(order: Order) -> None:
    SEEN.append(order)


def asked(*words: str) -> Order:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(command(Order, __name__, "cook"))
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    if done.exit_code:
        pytest.fail(done.output)
    return SEEN.pop()


def test_a_command_gets_its_defaults_from_the_fields() -> None:
    assert asked("soup") == Order(dish="soup", guests=2, extras=(), json=False)


def test_an_option_that_may_be_repeated_is_a_tuple() -> None:
    found = asked("soup", "--extra", "bread", "--extra", "salt", "--guests", "4", "--json")
    extras = (Path("bread"), Path("salt"))
    assert found == Order(dish="soup", guests=4, extras=extras, json=True)


def test_the_plan_holds_the_fields_that_are_marked_and_no_other() -> None:
    assert in_plan(Order(dish="soup", guests=3)) == {"guests": 3}


def test_the_docstring_is_the_help() -> None:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(command(Order, __name__, "cook"))
    assert "Cook something." in CliRunner().invoke(app, ["--help"]).output
