"""The JUnit XML of ``tuner verify`` for CI: it never says more than this run found."""

from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from tuner.errors import TargetError
from tuner.runs.verify import Gate
from tuner.system import files
from tuner.system.printable import printable

HEAD_BYTES = 1024


def prepare(path: Path) -> None:
    """Remove the file of an earlier run, which says nothing about this one.

    Raises TargetError for a file that is no JUnit file.
    """
    real = files.resolve(path)
    files.check_writable(real)
    if real.exists():
        with real.open("rb") as file:
            head = file.read(HEAD_BYTES)
        if head.strip() and b"<testsuite" not in head:
            raise TargetError(
                f"{path}: is there already and is no JUnit file", hint="Choose another --junit."
            )
        real.unlink()


def write(path: Path, profile: str, gates: Sequence[Gate], in_words: Callable[[Gate], str]) -> None:
    """Write a case for each gate. Raises TargetError."""
    broken = [gate for gate in gates if not gate.kept]
    counts = {"tests": len(gates), "failures": len(broken), "errors": 0}
    suite = ET.Element(
        "testsuite",
        {"name": "tuner verify", **{name: str(count) for name, count in counts.items()}},
    )
    for gate in gates:
        case = ET.SubElement(suite, "testcase", classname=printable(profile), name=gate.name)
        if gate in broken:
            ET.SubElement(case, "failure", message=printable(in_words(gate)))
    content = bytes(ET.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"
    files.write_atomically(files.resolve(path), content)
