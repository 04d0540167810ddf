"""The run directory: everything measured is on disk the moment it exists, and can be read back.

RUN_DIR/journal.jsonl     one event a line, appended and synced
RUN_DIR/replays/000.npz   requests and iterations of one replay, written before its event
"""

import errno
import json
import os
import secrets
import stat
import sys
import tokenize
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from tuner.engines.seam import ITERATION
from tuner.errors import RunError
from tuner.replay.records import DEVICE, REQUEST, Replay
from tuner.system import files
from tuner.system.files import lock
from tuner.traffic.slo import Slo
from tuner.traffic.window import parse_duration_s

Event = dict[str, Any]
FORMAT = 2
"""Of a journal; one of another is refused, and is never gone on with."""

_CONTENT = {
    "plan": {"format", "plan"},
    "trace": {"digest"},
    "start": {"purpose", "max_num_seqs", "facts", "at_s"},
    "probe": {"results", "at_s"},
    "choice": {"part", "windows", "step_s", "at_s"},
    "late": {"what", "why", "elapsed_s", "at_s"},
    "stall": {"what", "at_s"},
    "raised": {"budget", "at_s"},
    "replay": {"file", "purpose", "max_num_seqs", "elapsed_s", "window", "trial", "at_s"},
    "trial": {"purpose", "max_num_seqs", "at_s"},
    "measured": {"at_s"},
    "gathered": {"complete", "at_s"},
    "foretold": {"max_num_seqs", "windows", "unseen", "slo", "numbers", "means", "at_s"},
    "lost": {"purpose", "max_num_seqs", "worker", "why", "elapsed_s", "at_s"},
    "failed": {"approach", "block", "load", "lengths", "why", "hint", "at_s"},
}
"""Event → what it must hold."""

_NUMBERS = {"at_s", "elapsed_s"}
_PLAIN = {
    *("approach", "block", "digest", "file", "lengths", "load", "max_num_seqs", "purpose", "trial"),
    *("window", "worker"),
}
_NEVER = {"an event that is not known"}

_ARRAYS = {
    "requests": REQUEST,
    "gaps_s": np.dtype("f8"),
    "iterations": ITERATION,
    "device": DEVICE,
}
"""Array of a replay → its type, with which it is written and read back."""

NO_SENSE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError),
    *(TypeError, ValueError),
)
"""Errors that may come of reading events that tuner did not write."""

MOST_UNPACKED = 8 << 30
"""Bytes of one replay: a hundred thousand requests of a thousand tokens are a tenth of that."""

_AS_IT_LIES = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DAMAGED = (
    *(ArithmeticError, BadZipFile, EOFError, LookupError, MemoryError, RuntimeError),
    *(SyntaxError, TypeError, ValueError, tokenize.TokenError, zlib.error),
)
"""Errors that numpy, zipfile and json raise for what tuner did not write."""


@dataclass(slots=True)
class Journal:
    """An open run directory. ``events`` holds what earlier sessions and this one have written."""

    run_dir: Path
    events: list[Event] = field(default_factory=list)
    _file: IO[bytes] | None = None
    before: frozenset[str] | None = None
    """Names of what others have in the directory of a new run; None of a run that is gone on
    with."""

    _replays: dict[str, Replay] = field(default_factory=dict)
    """What was written or read once need not be read again."""

    def append(self, event: str, **content: Any) -> Event:  # noqa: ANN401 - JSON content
        """Write one event; it is on disk when this returns.

        Raises RunError when it cannot be written (a full disk).
        """
        line = {"event": event, **content}
        self.append_all([line])
        return line

    def append_all(self, events: Sequence[Event]) -> None:
        """Write events that belong together at once: a process that is killed leaves all or none.

        Raises RunError when they cannot be written.
        """
        assert self._file is not None
        lines = [json.dumps(event, allow_nan=False) + "\n" for event in events]
        try:
            # unbuffered: what could not be written must not be tried again when the file is closed
            rest = memoryview("".join(lines).encode())
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _cannot_write(self.run_dir, error) from error
        self.events.extend(events)

    def append_replay(self, result: Replay, **content: Any) -> Event:  # noqa: ANN401 - JSON content
        """Write the replay's data, then the event that names it."""
        return self.append("replay", file=self.store(result), **content)

    def store(self, result: Replay, *, ahead: int = 0) -> str:
        """Write a replay's data, ``ahead`` of so many others that no event names yet; return what
        the event calls it. Raises RunError when it cannot be written."""
        folder = self.run_dir / "replays"
        name = f"{sum('file' in event for event in self.events) + ahead:03}.npz"
        partial = folder / f".{name}.{secrets.token_hex(8)}.partial"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            with os.fdopen(_opened(partial, os.O_WRONLY | os.O_EXCL, inside=folder), "wb") as file:
                np.savez_compressed(file, **_pack(result))  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            partial.replace(folder / name)
        except OSError as error:
            raise _cannot_write(folder / name, error) from error
        self._replays[f"replays/{name}"] = result
        return f"replays/{name}"

    def replay(self, event: Event) -> Replay:
        """Return the replay that an event names. Raises RunError when its data is damaged."""
        name = str(event["file"])
        if name not in self._replays:
            self._replays[name] = self._read_replay(self.run_dir / name)
        return self._replays[name]

    def _read_replay(self, path: Path) -> Replay:
        hint = "Start again in another --run-dir."
        if path.parent != self.run_dir / "replays":
            raise RunError(f"{path}: is no part of this run", hint=hint)
        try:
            # numpy leaves a file open that it opened itself and cannot read
            with os.fdopen(os.open(path, _AS_IT_LIES), "rb") as file:
                _check_size(file)
                with np.load(file, allow_pickle=False) as data:
                    return _unpack(data)
        except OSError as error:
            why = error.strerror or error
            raise RunError(f"{path}: cannot be read back ({why})", hint=hint) from error
        except _DAMAGED as error:
            raise RunError(f"{path}: cannot be read back, it is damaged", hint=hint) from error

    @property
    def clock_s(self) -> float:
        """Return when the newest event was written, on the clock of its session's event loop."""
        return float(self.events[-1].get("at_s", 0.0)) if self.events else 0.0

    def of(self, event: str) -> Iterator[Event]:
        return (one for one in self.events if one["event"] == event)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def create(run_dir: Path, plan: Mapping[str, Any], **told: Any) -> Journal:  # noqa: ANN401 - JSON
    """Make a run directory for a new run. Nothing that is measured rests on what is ``told`` beside
    its plan. Raises RunError when one is there already."""
    path = run_dir / "journal.jsonl"
    if path.exists() and path.stat().st_size:
        raise RunError(
            f"{run_dir}: holds a run already",
            hint="Continue it with tuner resume, or give another --run-dir.",
        )
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        run_dir.mkdir(mode=0o700, exist_ok=True)
        before = frozenset(one.name for one in run_dir.iterdir() if one != path)
        file = os.fdopen(_opened(path, os.O_WRONLY | os.O_APPEND), "ab", buffering=0)
    except OSError as error:
        raise _cannot_write(run_dir, error) from error
    _lock(run_dir, file)
    journal = Journal(run_dir, _file=file, before=before)
    journal.append("plan", format=FORMAT, plan=dict(plan), **told)
    return journal


def _check_size(file: IO[bytes]) -> None:
    """Refuse what is no file, or would fill the memory once unpacked. Raises OSError, BadZipFile.

    What numpy unpacks is bounded by what the file's directory says.
    """
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a pipe would be waited for
        raise OSError(errno.EINVAL, "it is no file")
    with ZipFile(file) as archive:
        if sum(one.file_size for one in archive.infolist()) > MOST_UNPACKED:
            raise BadZipFile
    file.seek(0)


def _opened(path: Path, flags: int, *, inside: Path | None = None) -> int:
    """Open a file of a run for its owner alone. Raises OSError.

    Others may be able to write to its folder. So no link is followed, neither in place of the file
    nor of the folder ``inside`` which it lies.
    """
    flags |= os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if inside is None:
        descriptor = os.open(path, flags, 0o600)
    else:
        folder = os.open(inside, _FOLDER)
        try:
            descriptor = os.open(path.name, flags, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a pipe keeps nothing
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file")
    return descriptor


def _remove_partial(folder: Path) -> None:
    """Remove what a run that was killed has left of a replay. It is removed from the folder itself,
    never from where a link in its place leads. Raises OSError."""
    try:
        there = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return
    try:
        with os.scandir(there) as found:
            left = [one.name for one in found if fnmatchcase(one.name, ".*.partial")]
        for name in left:
            os.unlink(name, dir_fd=there)
    finally:
        os.close(there)


def read(run_dir: Path) -> Journal:
    """Read a run directory without going on with it. Raises RunError when there is no run."""
    return Journal(run_dir, _events(run_dir)[0])


def resume(run_dir: Path, plan: Mapping[str, Any], **told: Any) -> Journal:  # noqa: ANN401 - JSON
    """Open a run directory to go on with the same plan.

    A last line that a crash left unfinished is dropped. A sweep's budget may be larger than it was:
    what was measured under a smaller one is not lost. What is ``told`` beside the plan is told
    anew.

    Raises RunError when there is no run, when the journal is damaged, or when the plan differs in
    something that was measured under it.
    """
    path = run_dir / "journal.jsonl"
    _events(run_dir)  # that there is a run
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        file = os.fdopen(descriptor, "r+b", buffering=0)
    except OSError as error:
        raise _cannot_write(path, error) from error
    with ExitStack() as failing:
        failing.enter_context(file)
        _lock(run_dir, file)  # before it is read: another tuner may append until then
        journal = _resumed(run_dir, file, plan, told)
        failing.pop_all()
    return journal


def _resumed(
    run_dir: Path, file: IO[bytes], plan: Mapping[str, Any], told: Mapping[str, Any]
) -> Journal:
    path = run_dir / "journal.jsonl"
    events, whole_bytes = _events(run_dir)
    before, now = events[0]["plan"], json.loads(json.dumps(dict(plan)))
    raised = _is_raised(before, now.get("budget"))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and not (raised and key == "budget"):
            raise RunError(
                f"{path}:1: {key} was {_short(before.get(key))}, now {_short(now.get(key))}",
                hint="Resume with the options of the run, or start another --run-dir.",
            )
    try:
        file.truncate(whole_bytes)
        file.seek(0, os.SEEK_END)
        _remove_partial(run_dir / "replays")
    except OSError as error:
        raise _cannot_write(path, error) from error
    journal = Journal(run_dir, events, file)
    if raised:
        journal.append("raised", budget=now["budget"], at_s=journal.clock_s, **told)
        before["budget"] = now["budget"]
        events[0].update(told)
    return journal


def _is_raised(plan: Mapping[str, Any], now: object) -> bool:
    """Whether a run has more to spend now: what it could not afford is measured then."""
    before = plan.get("budget")
    if not isinstance(before, str) or not isinstance(now, str):
        return False
    was_s, is_s = (parse_duration_s(one, option="--budget") for one in (before, now))
    return is_s > was_s


def _events(run_dir: Path) -> tuple[list[Event], int]:
    path = run_dir / "journal.jsonl"
    events, whole_bytes = _read(path)
    first = events[0] if events else {}
    if first.get("format") != FORMAT or not isinstance(first.get("plan"), dict):
        raise RunError(f"{path}:1: no plan", hint="Start again in another --run-dir.")
    for event in events:
        if event["event"] == "raised":
            first["plan"]["budget"] = event["budget"]
            first.update({name: event[name] for name in ("command", "is_part") if name in event})
    return events, whole_bytes


def _is_event(event: object) -> bool:
    """Whether it has what events of its name have. Where something is looked at before it is read,
    that must be a number or a word."""
    if not isinstance(event, dict):
        return False
    missing = _CONTENT.get(str(event.get("event")), _NEVER) - event.keys()
    numbers = [event[name] for name in _NUMBERS & event.keys()]
    words = [event[name] for name in _PLAIN & event.keys()]
    return (
        not missing
        and all(isinstance(one, int | float) and abs(one) <= sys.float_info.max for one in numbers)
        and not any(isinstance(one, list | dict) for one in words)
    )


def _read(path: Path) -> tuple[list[Event], int]:
    """Return the events and how many bytes of whole lines they take."""
    try:
        content = files.read_regular(path)
    except FileNotFoundError:
        raise RunError(f"{path}: no run to resume", hint="Name the folder of a run.") from None
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}", hint="Make it readable.") from error
    whole = content[: content.rfind(b"\n") + 1]
    events: list[Event] = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not _is_event(event):
            raise RunError(
                f"{path}:{number}: not an event", hint="Start again in another --run-dir."
            )
        events.append(event)
    return events, len(whole)


def _lock(run_dir: Path, file: IO[bytes]) -> None:
    """Hold the run directory for this process; the system lets go when it ends, however it ends."""
    with suppress(OSError):
        if lock(file.fileno()):
            return
    file.close()
    raise RunError(f"{run_dir}: another tuner is at work here", hint="Wait for it, or end it.")


def _cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path}: cannot be written ({error.strerror or error})",
        hint="Make room or choose another --run-dir; a run that is resumed measures nothing twice.",
    )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _pack(result: Replay) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {name: getattr(result, name) for name in _ARRAYS}
    rest = {one.name: getattr(result, one.name) for one in fields(result)}
    rest = {name: value for name, value in rest.items() if name not in _ARRAYS}
    return arrays | {"rest": np.array(json.dumps(rest, default=asdict))}


def _unpack(data: Mapping[str, NDArray[Any]]) -> Replay:
    """Return a replay. Raises one of ``_DAMAGED``."""
    arrays: dict[str, Any] = {name: data[name] for name in _ARRAYS}
    if any(one.dtype != _ARRAYS[name] or one.ndim != 1 for name, one in arrays.items()):
        raise TypeError
    if arrays["requests"]["gaps"].sum() != len(arrays["gaps_s"]):
        raise ValueError
    rest = {**json.loads(str(data["rest"]))}
    if rest.get("slo") is not None:
        rest["slo"] = _slo(rest["slo"])
    for name in ("flaws", "failures"):
        rest[name] = tuple(map(str, rest[name]))
    return Replay(**arrays, **rest)


def _slo(stored: Mapping[str, Any]) -> Slo:
    """Return an SLO whose limits are numbers. Raises one of ``_DAMAGED``."""
    limits: dict[str, Any] = {
        name: None if value is None else float(value)
        for name, value in {**stored}.items()
        if name != "derived"
    }
    return Slo(**limits, derived=bool(stored["derived"]))
