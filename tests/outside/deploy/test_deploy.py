"""Deployment files: what `tuner apply` edits, byte for byte, and what it refuses.

``edited/NAME/`` has ``before.*`` and ``after.*``; ``refused/NAME/`` has ``before.*`` and
``refused.json``: the exit code, and what the message must name. ``lookalikes/KIND/`` has many files
with one ``refused.json``. Files beside them are there when the command runs; ``options.json`` holds
further options, ``profile.yaml`` another profile. A new case is a new folder.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.outside.table import BAD_INPUT, GATE_FAILED, OK, Done, run

HERE = Path(__file__).parent
PROFILE = HERE / "profile.yaml"
OURS = {"refused.json", "options.json"}

EDITED = sorted(each.name for each in (HERE / "edited").iterdir())
REFUSED = sorted(each.name for each in (HERE / "refused").iterdir())
LOOKALIKES = sorted(
    str(each.relative_to(HERE))
    for each in (HERE / "lookalikes").glob("*/*")
    if each.name not in OURS
)
LINE_ENDS = ("lf", "crlf", "open")


def spelled(text: bytes, ends: str) -> bytes:
    """Return the text with other line ends, or without the last one."""
    if ends == "crlf":
        return text.replace(b"\n", b"\r\n")
    return text.removesuffix(b"\n") if ends == "open" else text


def laid_out(case: Path, file: Path, folder: Path, ends: str) -> list[str]:
    """Put a case's file and what is beside it into a folder; return the options of its command."""
    shutil.copy(PROFILE, folder / "profile.yaml")
    beside = [] if case.parent.name == "lookalikes" else [*case.iterdir()]
    for each in beside:
        if each.name not in OURS and each.stem != "after" and each != file:
            shutil.copy(each, folder / each.name)
    (folder / file.name).write_bytes(spelled(file.read_bytes(), ends))
    options = case / "options.json"
    found: list[str] = json.loads(options.read_text()) if options.exists() else []
    return [file.name, *found]


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


@pytest.mark.parametrize("ends", LINE_ENDS)
@pytest.mark.parametrize("name", EDITED)
def test_a_file_is_edited_once_and_taken_back(tmp_path: Path, name: str, ends: str) -> None:
    case = HERE / "edited" / name
    (file,) = case.glob("before*")
    (after,) = case.glob("after*")
    words = laid_out(case, file, tmp_path, ends)
    before = contents(tmp_path)

    planned = run(tmp_path, "apply", "profile.yaml", *words, "--dry-run")
    assert (planned.code, contents(tmp_path)) == (OK, before), planned.stderr
    done = run(tmp_path, "apply", "profile.yaml", *words, "--json")
    assert done.code == OK, done.stderr
    assert (tmp_path / file.name).read_bytes() == spelled(after.read_bytes(), ends)
    assert done.json["status"] == "changed"

    edited = contents(tmp_path)
    again = run(tmp_path, "apply", "profile.yaml", *words, "--json")
    assert (again.code, again.json["status"], contents(tmp_path)) == (OK, "unchanged", edited)

    assert run(tmp_path, "rollback", file.name).code == OK
    assert contents(tmp_path) == before


def check_refused(folder: Path, done: Done, before: dict[str, bytes], wanted: str) -> None:
    """Check the exit code, that one line names the place, and that nothing changed."""
    expected = json.loads(wanted)
    codes = expected["exit"] if isinstance(expected["exit"], list) else [expected["exit"]]
    assert done.code in codes, done.stderr
    assert [each for each in expected.get("names", ()) if each not in done.error] == []
    assert contents(folder) == before


@pytest.mark.parametrize("ends", LINE_ENDS)
@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_refused_and_stays(tmp_path: Path, name: str, ends: str) -> None:
    case = HERE / "refused" / name
    file = next(each for each in case.glob("before*") if each.stem == "before")
    words = laid_out(case, file, tmp_path, ends)
    before = contents(tmp_path)
    done = run(tmp_path, "apply", "profile.yaml", *words)
    check_refused(tmp_path, done, before, (case / "refused.json").read_text())


@pytest.mark.parametrize("name", LOOKALIKES)
def test_what_only_looks_like_it_is_refused(tmp_path: Path, name: str) -> None:
    file = HERE / name
    laid_out(file.parent, file, tmp_path, "lf")
    before = contents(tmp_path)
    done = run(tmp_path, "apply", "profile.yaml", file.name)
    check_refused(tmp_path, done, before, (file.parent / "refused.json").read_text())


def test_the_exit_codes_are_those_of_the_folders() -> None:
    codes = {
        each.parent.name: json.loads(each.read_text())["exit"]
        for each in (HERE / "lookalikes").glob("*/refused.json")
    }
    assert codes == {"not-vllm": BAD_INPUT, "other-model": GATE_FAILED}
