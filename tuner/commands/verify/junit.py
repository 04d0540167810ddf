"""The JUnit XML of ``tuner verify`` for CI: it never says more than this run found."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

from tuner.errors import TargetError, TunerError
from tuner.runs.verify.gates import Gate
from tuner.system import files
from tuner.system.printable import printable

_HEAD_BYTES = 1024

Say = Callable[[Gate], str]
Write = Callable[[Sequence[Gate]], None]


@contextmanager
def junit(path: Path | None, *, profile: str, said: Say) -> Iterator[Write]:
    """Yield what writes the gates to ``path``; until then the file says that there are none.

    However the block ends, the file of an earlier run does not stand as if it were this one's. From
    the start the file holds an error, and in the end the one that was raised. Raises TargetError
    for a file that is somebody else's.
    """
    if path is None:
        yield lambda _: None
        return
    real = _ours(path)
    is_written = False

    def write(found: Sequence[Gate]) -> None:
        nonlocal is_written
        files.write_atomically(real, document(found, profile, said))
        is_written = True

    files.write_atomically(real, not_verified("the run did not end", profile))
    try:
        yield write
    except TunerError as problem:
        if not is_written:
            files.write_atomically(real, not_verified(str(problem), profile))
        raise


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


def document(found: Sequence[Gate], profile: str, said: Say) -> bytes:
    failures = sum(not gate.kept for gate in found)
    suite = _suite(tests=len(found), failures=failures, errors=0)
    for gate in found:
        case = ET.SubElement(suite, "testcase", classname=printable(profile), name=gate.name)
        if not gate.kept:
            ET.SubElement(case, "failure", message=printable(said(gate)))
    return _bytes(suite)


def not_verified(why: str, profile: str) -> bytes:
    suite = _suite(tests=1, failures=0, errors=1)
    case = ET.SubElement(suite, "testcase", classname=printable(profile), name="verified")
    ET.SubElement(case, "error", message=printable(f"not verified: {why}"))
    return _bytes(suite)


def _suite(*, tests: int, failures: int, errors: int) -> ET.Element:
    counts = {"tests": str(tests), "failures": str(failures), "errors": str(errors)}
    return ET.Element("testsuite", {"name": "tuner verify", **counts})


def _bytes(suite: ET.Element) -> bytes:
    return bytes(ET.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"
