"""What every command refuses: in one line with a cure, with its exit code, and nothing is left."""

import hashlib
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from tests.outside.machines.swept import HERE as MACHINES
from tests.outside.table import COMMANDS, OK, run

TABLE = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
SIM = ("--world", "world.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    shutil.copy(MACHINES / "still" / "world.yaml", folder)
    shutil.copy(MACHINES / "traces" / "light.jsonl", folder / "prod.jsonl")
    trace = ("--trace", "prod.jsonl", "--ceiling", "8", "--run-dir", "run")
    assert run(folder, "sweep", *SIM, *trace).code == OK
    (folder / "serve.yaml").write_text("model: tuner:tiny\nmax-num-seqs: 256\n")
    (folder / "folder").mkdir()
    for name, text in TABLE["files"].items():
        (folder / name).write_text(text)
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(("line", "code", "name"), TABLE["refusals"])
def test_it_is_refused_in_one_line_that_names_what_is_wrong(
    folder: Path, line: str, code: int, name: str
) -> None:
    given = shlex.split(line.replace("$SIM", shlex.join(SIM)))
    two = " ".join(given[:2])
    command, options = (two, given[2:]) if two in COMMANDS else (given[0], given[1:])
    before = contents(folder)
    done = run(folder, command, *options)
    assert done.code == code, done.stderr
    assert name in done.error
    assert "a secret" not in done.stderr
    assert contents(folder) == before
