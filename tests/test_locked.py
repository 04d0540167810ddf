"""What the checks are made with is locked, with hashes, and says nothing of where it came from."""

import re
import tomllib

import pytest

from tests.support.places import ROOT

LOCK = (ROOT / "requirements" / "dev.txt").read_text()
PINNED = {found[1]: found[2] for found in re.finditer(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE)}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]


@pytest.mark.parametrize("line", ASKED)
def test_what_is_asked_for_is_locked(line: str) -> None:
    name = re.split(r"[\[<>=~!; ]", line)[0].lower()
    assert name in PINNED
    if "==" in line:
        assert line.endswith(f"=={PINNED[name]}")


def test_each_has_hashes_and_no_place() -> None:
    entries = re.split(r"^(?=[\w.-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert len(entries) >= len(ASKED)
    assert [one.split()[0] for one in entries if "--hash=sha256:" not in one] == []
    assert re.findall(r"https?:|file:|^-|/", LOCK, re.MULTILINE) == []
