"""The verdict block of every verdict and engine, and the command that it ends with."""

import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from tests.support import golden
from tests.support.in_process import tuner
from tests.support.profiles import profile
from tuner.commands.root import app
from tuner.commands.sweep.options import SweepOptions
from tuner.commands.sweep.view import next_command
from tuner.profile.profile import save
from tuner.profile.summary import KINDS, block_of

ENGINES = ("vllm", "sim")
OPTIONS = SweepOptions(traces=(Path("prod.jsonl"),), overrides=("dtype=float32",))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("verdict", KINDS)
def test_the_block_of_every_verdict_is_as_agreed(
    verdict: str, engine: str, request: pytest.FixtureRequest
) -> None:
    found = profile(verdict=verdict, engine_=engine)
    command = next_command(OPTIONS, found, Path("profile.yaml"))
    golden.check(
        f"verdicts/{verdict}-{engine}.txt",
        "\n".join([*block_of(found, next_=command).lines(), ""]),
        update=request.config.getoption("--update-golden"),
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("verdict", KINDS)
def test_the_next_command_works_as_it_is_printed(verdict: str, engine: str, tmp_path: Path) -> None:
    found = profile(verdict=verdict, engine_=engine)
    save(found, tmp_path / "profile.yaml")
    name, *words = shlex.split(next_command(OPTIONS, found, Path("profile.yaml")))
    assert name == "tuner"
    if words[0] == "sweep":  # on a real engine, which makes it long: here only what it asks for
        asked = get_command(app).commands["sweep"].make_context("sweep", words[1:]).params  # type: ignore[attr-defined]
        assert asked["overrides"] == ["dtype=float32"]
        assert (asked["ceiling"], asked["budget"]) in {(64, "15m"), (32, "1800s")}
        return
    done = tuner(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout
