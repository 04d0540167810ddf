"""Deployment files: what `tuner apply` edits, byte for byte, and what it refuses.

``edited/NAME/`` has ``before.*`` and ``after.*``; ``refused/NAME/`` has ``before.*`` and
``refused.json``: the exit code, and what the message must name. ``lookalikes/KIND/`` has many files
with one ``refused.json``. Files beside them are there when the command runs; ``options.json`` holds
further options, ``profile.json`` what is other in the profile. A new case is a new folder.
"""

import json
import random
import shutil
from functools import cache
from pathlib import Path

import pytest

from tests.outside.table import OK, Done, run
from tests.support.profiles import profile
from tuner.profile.profile import dump

HERE = Path(__file__).parent
OURS = {"refused.json", "options.json", "profile.json"}
ENGINE = {
    "model": "acme/translator-7b",
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": True,
}

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


@cache
def profile_of(case: Path) -> str:
    """Return the profile that a case applies."""
    changes = case / "profile.json"
    facts = json.loads(changes.read_text()) if changes.exists() else {}
    return dump(profile(engine=ENGINE | facts.pop("engine", {}), **facts))


def laid_out(case: Path, file: Path, folder: Path, ends: str) -> list[str]:
    """Put a case's file and what is beside it into a folder; return the options of its command."""
    (folder / "profile.yaml").write_text(profile_of(case))
    beside = [] if case.parent.name == "lookalikes" else [*case.iterdir()]
    for each in beside:
        if each.name not in OURS and each.stem != "after" and each != file:
            shutil.copy(each, folder / each.name)
    (folder / file.name).write_bytes(spelled(file.read_bytes(), ends))
    options, refused = case / "options.json", case / "refused.json"
    result: list[str] = json.loads(options.read_text()) if options.exists() else []
    result += json.loads(refused.read_text()).get("options", []) if refused.exists() else []
    return [file.name, *result]


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

    done = run(tmp_path, "apply", "profile.yaml", *words, "--json")
    assert done.code == OK, done.stderr
    assert (tmp_path / file.name).read_bytes() == spelled(after.read_bytes(), ends)
    assert done.json["status"] == "changed"
    if ends != "lf":
        return

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


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_refused_and_stays(tmp_path: Path, name: str) -> None:
    case = HERE / "refused" / name
    file = next(each for each in case.glob("before*") if each.stem == "before")
    words = laid_out(case, file, tmp_path, "lf")
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


@pytest.mark.attack
@pytest.mark.parametrize("seed", range(4))
def test_a_broken_file_is_edited_or_refused_in_one_line(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    (tmp_path / "profile.yaml").write_text(profile_of(HERE))
    for name in rng.sample(EDITED, 30):
        (file,) = (HERE / "edited" / name).glob("before*")
        lines = file.read_text().split("\n")
        at = rng.randrange(len(lines))
        behind = rng.choice(["", "5", "[]", "{}", "'"])
        broken = [lines[at][: rng.randrange(len(lines[at]) + 1)], lines[at].partition(":")[0] + ":"]
        lines[at] = rng.choice(["", lines[at].replace("  ", "", 1), *broken]) + behind
        (tmp_path / file.name).write_text("\n".join(lines))
        done = run(tmp_path, "apply", "profile.yaml", file.name, "--dry-run")
        assert done.code == OK or done.error


def test_two_servers_are_asked_for(tmp_path: Path) -> None:
    source = HERE / "edited" / "compose-merge" / "before.yaml"
    (tmp_path / "profile.yaml").write_text(profile_of(HERE))
    shutil.copy(source, tmp_path)
    done = run(tmp_path, "apply", "profile.yaml", "before.yaml")
    assert (done.code, "chat" in done.error, "embed" in done.error) == (2, True, True)
