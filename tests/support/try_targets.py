"""Try ``tuner apply`` on a folder of deployments: apply, apply again, roll back, and say what came.

FOLDER/expected.json says what should come of which file, by its path from there:

    {"deploy/vllm.yaml": {"expect": "edit", "args": ["--container", "vllm"]},
     "prometheus.yml": {"expect": "refuse"}}

A refused file must be as it was, with nothing new beside it. An edited one must not change when the
profile is applied again, and be what it was, byte for byte, once that is rolled back. The profile
is --profile, or FOLDER/profile.yaml. Nothing in FOLDER changes: a copy is edited. The exit code is
6 when any file is not as expected.
"""

import argparse
import difflib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tuner import cli
from tuner.errors import GateError, TunerError, UsageError
from tuner.profile import profile

WRONG = 6


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome of one file."""

    path: str
    expected: str
    found: str
    """``edit``, ``refuse``, or what is wrong."""

    code: int
    """Of the first apply."""

    changed: int
    """Lines that an edit took away or added."""

    said: str
    """The reason of a refusal; else the first line of the output."""

    @property
    def is_right(self) -> bool:
        return self.found == self.expected


def main(words: Sequence[str]) -> int:
    """Print a line a file, and how many were right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="deployments, with expected.json")
    parser.add_argument("--profile", type=Path, help="default: FOLDER/profile.yaml")
    options = parser.parse_args(words)
    try:
        tried = list(try_folder(options.folder, options.profile))
    except TunerError as problem:
        sys.stderr.write(f"Error: {problem}\n{problem.hint}\n")
        return problem.exit_code
    width = max((len(one.path) for one in tried), default=0)
    for one in tried:
        mark = "   " if one.is_right else "!! "
        print(  # noqa: T201
            f"{mark}{one.path:{width}}  expected {one.expected:6}  {one.found:6}  "
            f"exit {one.code}  {one.changed:3} lines  {one.said}"
        )
    wrong = sum(not one.is_right for one in tried)
    edits = sum(one.found == "edit" and one.is_right for one in tried)
    print(  # noqa: T201
        f"{len(tried)} files: {edits} edited, {len(tried) - edits - wrong} refused, {wrong} wrong"
    )
    return WRONG if wrong else 0


def try_folder(folder: Path, chosen: Path | None = None) -> Iterator[Tried]:
    """Yield what comes of each file. Raises UsageError, ProfileError and GateError."""
    expected = _expected(folder)
    chosen = (chosen or folder / "profile.yaml").resolve()
    profile.load(chosen)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "deployments")
        shutil.copytree(folder, copy, symlinks=True)
        before = os.getcwd()  # noqa: PTH109 - to go back to
        try:
            os.chdir(copy)
            for path, wanted in expected.items():
                yield _try(path, wanted, str(chosen))
        finally:
            os.chdir(before)


def _expected(folder: Path) -> dict[str, dict[str, object]]:
    path = folder / "expected.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for name, wanted in dict.items(found):
            words = wanted.get("args", [])
            if wanted["expect"] not in ("edit", "refuse") or not all(
                isinstance(word, str) for word in words
            ):
                raise UsageError(f"{path}: {name}: no edit and no refuse", hint="Correct it.")
            if not (folder / name).is_file():
                raise UsageError(f"{path}: {name}: there is no such file", hint="Correct it.")
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as problem:
        raise UsageError(
            f"{path}: {problem}",
            hint='It holds {"PATH": {"expect": "edit" or "refuse", "args": [...]}}.',
        ) from None
    return dict(found)


def _try(path: str, wanted: dict[str, object], chosen: str) -> Tried:
    arguments = wanted.get("args", [])
    assert isinstance(arguments, list)
    was, beside = Path(path).read_bytes(), set(Path().rglob("*"))
    code, out, err = tuner("apply", chosen, path, *arguments)
    now = Path(path).read_bytes()
    first = next(
        (one for one in err.splitlines() if one.startswith("Error")), out.partition("\n")[0]
    )
    changed = _changed_lines(was, now)
    found = _refused(code, same=was == now and beside == set(Path().rglob("*")))
    if code == 0:
        found = _edited(path, was, chosen, arguments)
    return Tried(path, str(wanted["expect"]), found, code, changed, first)


def _changed_lines(was: bytes, now: bytes) -> int:
    before, after = (text.decode("latin-1").split("\n") for text in (was, now))
    found = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(i2 - i1 + j2 - j1 for what, i1, i2, j1, j2 in found if what != "equal")


def _refused(code: int, *, same: bool) -> str:
    if code not in (UsageError.exit_code, 3, 5, GateError.exit_code):
        return f"ended with {code}"
    return "refuse" if same else "refused, and something changed"


def _edited(path: str, was: bytes, chosen: str, arguments: Sequence[str]) -> str:
    once = Path(path).read_bytes()
    again, out, _ = tuner("apply", chosen, path, *arguments)
    if again != 0 or Path(path).read_bytes() != once:
        return "applied again it changes"
    if once == was:
        return "edit" if "nothing to change" in out else "said to be edited, and is not"
    back, _, _ = tuner("apply", "--rollback", path)
    return "edit" if back == 0 and Path(path).read_bytes() == was else "rolled back it differs"


def tuner(*arguments: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of the command, run in this process."""
    with _streams() as (out, err), mock.patch.object(sys, "argv", ["tuner", *arguments]):
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        return code, out.getvalue().decode(), err.getvalue().decode()


@contextmanager
def _streams() -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    out, err = io.BytesIO(), io.BytesIO()
    texts = [
        io.TextIOWrapper(one, encoding="utf-8", errors="backslashreplace") for one in (out, err)
    ]
    with mock.patch.object(sys, "stdout", texts[0]), mock.patch.object(sys, "stderr", texts[1]):
        yield out, err
    for one in texts:
        one.detach()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
