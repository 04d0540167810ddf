"""The JUnit XML of ``tuner verify`` for CI: it never says more than this run found."""

from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from tuner.errors import TargetError
from tuner.runs.verify.gates import Gate
from tuner.system import files
from tuner.system.printable import printable

HEAD_BYTES = 1024


def check(path: Path) -> None:
    """Raise TargetError for a file that is there already and is no JUnit file."""
    real = files.resolve(path)
    files.check_writable(real)
    if real.exists():
        with real.open("rb") as file:
            head = file.read(HEAD_BYTES)
        if head.strip() and b"<testsuite" not in head:
            raise TargetError(
                f"{path}: is there already and is no JUnit file", hint="Choose another --junit."
            )


def write(path: Path, profile: str, gates: Sequence[Gate], in_words: Callable[[Gate], str]) -> None:
    """Write a case for each gate. Raises TargetError."""
    broken = [gate for gate in gates if not gate.kept]
    suite = _suite(tests=len(gates), failures=len(broken), errors=0)
    for gate in gates:
        case = ET.SubElement(suite, "testcase", classname=printable(profile), name=gate.name)
        if gate in broken:
            ET.SubElement(case, "failure", message=printable(in_words(gate)))
    _write(path, suite)


def write_error(path: Path, profile: str, why: str) -> None:
    """Write that nothing was verified: the file of an earlier run does not stand for this one."""
    suite = _suite(tests=1, failures=0, errors=1)
    case = ET.SubElement(suite, "testcase", classname=printable(profile), name="verified")
    ET.SubElement(case, "error", message=printable(f"not verified: {why}"))
    _write(path, suite)


def _suite(**counts: int) -> ET.Element:
    numbers = {name: str(count) for name, count in counts.items()}
    return ET.Element("testsuite", {"name": "tuner verify", **numbers})


def _write(path: Path, suite: ET.Element) -> None:
    content = bytes(ET.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"
    files.write_atomically(files.resolve(path), content)
