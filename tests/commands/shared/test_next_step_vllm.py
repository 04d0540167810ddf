"""What a block says to run where that starts a real engine: as it is printed, to its end."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.shared.test_next_step import CASES, PROFILE, TRACE, Kind
from tests.support.traces import beginning
from tuner.profile.profile import save

STARTS = ("sweep", "verify")
REQUESTS = 24
"""Of a trace: seven seconds of traffic, so that a step of a sweep takes no longer."""


@pytest.mark.vllm
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ["vllm", "serve"])
@pytest.mark.parametrize("command", ["sweep", "several", "refine", "verify"])
def test_what_starts_an_engine_runs_as_it_is_printed(
    command: str, engine: Kind, tmp_path: Path
) -> None:
    program = str(Path(sys.executable).with_name("tuner"))
    for count, name in ((0, str(TRACE)), (1, "day.jsonl"), (2, "night.jsonl")):
        beginning(tmp_path / name, REQUESTS - count)
    said = {one.block.next: one.profile for one in CASES[command](engine)}
    starting = {line: one for line, one in said.items() if shlex.split(line)[1] in STARTS}
    assert starting
    for line, one in starting.items():
        save(one, tmp_path / PROFILE)
        words = shlex.split(line)[1:]
        done = subprocess.run(
            [program, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode in {0, 5, 6}, (line, done.stderr)
        assert done.stdout
