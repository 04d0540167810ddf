"""Run the tests that take long, and keep what came of them in docs/evidence/long.json.

    python scripts/long.py [options of pytest]

Some measure a real engine, whose verdict is inconclusive where the machine was restless for
minutes: what failed runs once more, and both are kept. With options only a part may have run: then
nothing is kept.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

import evidence

ENDED = (0, 1)
"""Exit codes of pytest: all tests passed, or some failed."""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = _run(report, *sys.argv[1:])
        if sys.argv[1:] or code not in ENDED:
            return code
        found = counts(report)
        found["failed_again"] = []
        if found["failures"]:
            code = _run(report, "--last-failed")
            found["failed_again"] = counts(report)["failures"]
        evidence.keep("long", found, evidence.of_engines())
    return code


def _run(report: Path, *options: str) -> int:
    words = [sys.executable, "-m", "pytest", "-m", "long", f"--junitxml={report}", *options]
    return subprocess.run(words, cwd=evidence.ROOT, check=False).returncode  # noqa: S603 - our own


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


if __name__ == "__main__":
    sys.exit(main())
