"""The shares of `make test`: up to the first that fails, with what each took."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT

MAKEFILE = """\
good:
\t@echo said by good

bad:
\t@echo said by bad
\t@exit 7
"""


def shares(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    (folder / "Makefile").write_text(MAKEFILE)
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "shares.py"), *words],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_what_each_share_took_is_printed_below_what_it_said(tmp_path: Path) -> None:
    done = shares(tmp_path, "good=90", "good=300")
    assert done.returncode == 0, done.stderr
    said, _, told = done.stdout.partition("share")
    assert said.split("\n") == ["said by good", "said by good", "", ""]
    rows = [line.split() for line in told.splitlines()[1:]]
    assert [(row[0], row[2]) for row in rows] == [
        ("good", "1:30"),
        ("good", "5:00"),
        ("all", "6:30"),
    ]
    assert all(re.fullmatch(r"\d:\d\d", row[1]) for row in rows)


def test_the_first_that_fails_is_the_last_and_fails_the_whole(tmp_path: Path) -> None:
    done = shares(tmp_path, "good=90", "bad=90", "good=90")
    assert done.returncode == 2  # as make says it
    rows = done.stdout.partition("share")[2].splitlines()[1:]
    assert [(row.split()[0], row.endswith("failed")) for row in rows] == [
        ("good", False), ("bad", True), ("all", False),
    ]  # fmt: skip


def test_one_that_takes_longer_than_it_may_is_marked_and_fails_nothing(tmp_path: Path) -> None:
    done = shares(tmp_path, "good=0", "good=90")
    assert done.returncode == 0
    assert done.stdout.count("longer than it may") == 1


REPORT = """\
<testsuites><testsuite tests="4" failures="1" errors="0" skipped="1" time="12.6">
<testcase classname="tests.test_a" name="test_good"/>
<testcase classname="tests.test_a" name="test_bad"><failure/></testcase>
</testsuite></testsuites>
"""


def test_what_came_of_the_long_tests_is_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    (tmp_path / "report.xml").write_text(REPORT)
    counts = runpy.run_path(str(ROOT / "scripts" / "long.py"))["counts"]
    assert counts(tmp_path / "report.xml") == {
        "passed": 2, "failed": 1, "skipped": 1, "seconds": 13,
        "failures": ["tests.test_a.test_bad"],
    }  # fmt: skip


def test_of_the_long_tests_that_were_run_last_none_failed_twice() -> None:
    kept = json.loads((ROOT / "docs" / "evidence" / "long.json").read_text())["found"]
    assert kept["passed"] > 0
    assert kept["failed_again"] == []
