"""The JUnit XML of ``tuner verify`` for CI."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

from tuner.errors import TargetError
from tuner.runs.verify.gates import Gate
from tuner.system import files
from tuner.system.printable import printable

_HEAD_BYTES = 1024

Say = Callable[[Gate], str]
Write = Callable[[Sequence[Gate]], None]


@contextmanager
def junit(path: Path | None, *, profile: str, said: Say) -> Iterator[Write]:
    """Yield what writes the gates to ``path``; the file of an earlier verification is removed
    first. Raises TargetError for a file that is somebody else's."""
    if path is None:
        yield lambda _: None
        return
    real = _ours(path)
    real.unlink(missing_ok=True)
    yield lambda gates: files.write_atomically(real, document(gates, profile, said))


def _ours(path: Path) -> Path:
    real = files.resolve(path)
    files.check_writable(real)
    if real.exists():
        with real.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head.strip() and b"<testsuite" not in head:
            raise TargetError(
                f"{path}: is there already and is no JUnit file", hint="Choose another --junit."
            )
    return real


def document(gates: Sequence[Gate], profile: str, said: Say) -> bytes:
    failures = sum(not gate.kept for gate in gates)
    counts = {"tests": str(len(gates)), "failures": str(failures), "errors": "0"}
    suite = ET.Element("testsuite", {"name": "tuner verify", **counts})
    for gate in gates:
        case = ET.SubElement(suite, "testcase", classname=printable(profile), name=gate.name)
        if not gate.kept:
            ET.SubElement(case, "failure", message=printable(said(gate)))
    return bytes(ET.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"
