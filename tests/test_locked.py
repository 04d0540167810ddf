"""What is installed for tests and checks is what is locked, and every file of it has a hash."""

import json
import re
import sys
import sysconfig
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.support.places import ROOT

LOCKS = [ROOT / "requirements" / name for name in ("dev.txt", "setup.txt")]
OF_TORCH = {"torch", "triton"}
NAME = re.compile(r"[\w.-]+")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(path: Path) -> dict[str, set[str]]:
    """Return the versions of every package: another Python may have another."""
    found: dict[str, set[str]] = {}
    for line in path.read_text().splitlines():
        if found_name := re.match(r"([\w.-]+)==([^\s;]+)", line):
            found.setdefault(plain(found_name[1]), set()).add(found_name[2])
    return found


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_file_that_may_be_installed_has_a_hash_and_no_place(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    entries = "\n".join(lines).replace("\\\n", "").splitlines()
    package = r"[\w.-]+==[^\s;]+( ; [^\\]+?)?(\s+--hash=sha256:[0-9a-f]{64})+"
    assert [one for one in entries if not re.fullmatch(package, one)] == []
    assert len(entries) > 5


def test_everything_that_is_asked_for_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["dev"], *extras["cpu"]]
    names = {plain(found[0]) for one in asked if (found := NAME.match(one))}
    assert names - OF_TORCH <= locked(LOCKS[0]).keys()


def test_what_is_installed_is_what_is_locked() -> None:
    stamp = ROOT / ".venv" / "tuner-setup.json"
    if Path(sys.prefix) != ROOT / ".venv" or json.loads(stamp.read_text())["engine"] != "cpu":
        pytest.skip("not set up by make setup-dev with vLLM's CPU build")
    versions = locked(LOCKS[0])
    places = [
        *{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    ]  # not setuptools' own
    here = {plain(one.name): one.version for one in distributions(path=places)}
    both = {name: version for name, version in here.items() if name in versions}
    assert len(both) > 150
    assert {n: v for n, v in both.items() if v not in versions[n]} == {}
