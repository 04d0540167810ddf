"""The folder of a run: typed events, each on disk when it is added, and the replays they name.

RUN_DIR/journal.jsonl     one event a line, appended and synced
RUN_DIR/replays/000.npz   one replay, written before its event
"""

import asyncio
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import numpy as np

from tuner.engines.seam import ITERATION, ArgumentValue, EngineFacts
from tuner.errors import RunError, TargetError
from tuner.replay.records import DEVICE, REQUEST, ProbeResult, Replay
from tuner.system import files
from tuner.traffic.window import Window, parse_duration_s

JOURNAL, REPLAYS = "journal.jsonl", "replays"

FORMAT = 4
"""Of a run; another format is refused."""

NO_SENSE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError),
    *(TypeError, ValueError),
)
"""Errors that may come of what is well formed and was not written by tuner."""

_ELSEWHERE = "Start again in another --run-dir."

Configuration = Mapping[str, ArgumentValue]
"""Engine argument → value, where it is not the starter's own."""

# Events


class Event(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="event", forbid_unknown_fields=True
):
    """A line of the journal. A field that is missing, unknown or of another type makes it none."""

    at_s: float = 0.0
    """When it was written, on the event loop's clock."""


class Planned(Event, frozen=True, tag="plan"):
    """What every measurement rests on, and the command that asked for it: the first event, and
    again where a larger budget was given."""

    format: int
    plan: dict[str, Any]
    command: tuple[str, ...] = ()
    is_part: bool = False
    """Whether it is a part of the run in the folder above."""


class EngineStart(Event, frozen=True, tag="start"):
    """An engine was started: for what, at which size, and what it reported of itself."""

    purpose: str
    max_num_seqs: int
    facts: EngineFacts
    key: str = ""
    """What trials must have in common to share it."""


class Probed(Event, frozen=True, tag="probe"):
    """What an idle engine of this purpose does, request by request."""

    purpose: str
    results: tuple[ProbeResult, ...]
    flaws: tuple[str, ...] = ()
    elapsed_s: float = 0.0


class Selection(Event, frozen=True, tag="choice"):
    """The part of the trace, and the windows of it that a step replays."""

    part: Window
    windows: tuple[Window, ...]
    step_s: float


class Tried(Event, frozen=True, kw_only=True):
    """What was to be measured."""

    purpose: str
    max_num_seqs: int
    configuration: Configuration = {}
    window: Window | None = None
    """None of a ramp."""

    approach: str = ""
    load: str = ""
    """Of a comparison: the way of serving, and the traffic."""


class Replayed(Tried, frozen=True, kw_only=True, tag="replay"):
    """A replay or a ramp, and the file that holds it."""

    file: str
    elapsed_s: float


class Failed(Tried, frozen=True, kw_only=True, tag="failed"):
    """What could not be measured, and why."""

    why: str
    hint: str = ""


class Gathered(Event, frozen=True, tag="gathered"):
    """The search has ended: nothing more is measured before what confirms it."""

    complete: bool
    """Whether nothing but itself ended it."""

    chosen: Configuration = {}
    pairs: tuple[Window, ...] = ()
    """The windows in which the chosen configuration is compared with the knee, pair by pair."""


class Repeated(Event, frozen=True, tag="late"):
    """Something was measured once more, why, and what it had taken."""

    what: str
    why: str
    elapsed_s: float


_Any = Planned | EngineStart | Probed | Selection | Replayed | Failed | Gathered | Repeated
_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(_Any)

AnyOf = TypeVar("AnyOf", bound=Event)

# Replays

_ARRAYS = {
    "requests": REQUEST, "gaps_s": np.dtype("f8"), "iterations": ITERATION, "device": DEVICE,
}  # fmt: skip
"""Array of a replay → its type, with which it is written and read back."""

_REST = msgspec.defstruct(
    "_REST", [(field.name, field.type) for field in fields(Replay) if field.name not in _ARRAYS]
)
"""A replay without its arrays."""


@dataclass(slots=True)
class Journal:
    """An open run. ``events`` holds what earlier sessions and this one have written."""

    run_dir: Path
    events: list[Event] = field(default_factory=list)
    before: frozenset[str] | None = None
    """Names of what others have in the folder of a new run; None of a resumed run."""

    _file: IO[bytes] | None = None
    _replays: dict[str, Replay] = field(default_factory=dict)

    @property
    def planned(self) -> Planned:
        planned = self.last(Planned)
        assert planned is not None
        return planned

    @property
    def plan(self) -> dict[str, Any]:
        return self.planned.plan

    def of(self, kind: type[AnyOf]) -> Iterator[AnyOf]:
        return (event for event in self.events if isinstance(event, kind))

    def last(self, kind: type[AnyOf]) -> AnyOf | None:
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)

    @property
    def clock_s(self) -> float:
        """Return when the newest event was written, on the clock of its session's event loop."""
        return self.events[-1].at_s if self.events else 0.0

    def add(self, event: Event) -> None:
        """Write an event; it is on disk when this returns. Raises RunError when it cannot be
        written, as on a full disk."""
        assert self._file is not None
        try:
            at_s = asyncio.get_running_loop().time()
        except RuntimeError:  # no loop runs yet, or none any more
            at_s = self.clock_s
        stamped = msgspec.structs.replace(event, at_s=at_s)
        rest = memoryview(_ENCODER.encode(stamped) + b"\n")
        try:
            # unbuffered: what could not be written must not be tried again when the file is closed
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _cannot_write(self.run_dir, error.strerror or error) from error
        self.events.append(stamped)

    def add_replay(self, replay: Replay, tried: Tried) -> None:
        """Write a replay, then the event that names it. Raises RunError."""
        name, content = f"{REPLAYS}/{sum(1 for _ in self.of(Replayed)):03}.npz", io.BytesIO()
        rest = msgspec.msgpack.encode({f: getattr(replay, f) for f in _REST.__struct_fields__})
        arrays = {each: getattr(replay, each) for each in _ARRAYS}
        np.savez_compressed(content, rest=np.frombuffer(rest, np.uint8), **arrays)
        try:
            files.make_own(self.run_dir / REPLAYS)
            files.write_own(self.run_dir / name, content.getvalue())
        except TargetError as error:
            raise _cannot_write(self.run_dir, error) from error
        self._replays[name] = replay
        of_trial = msgspec.structs.asdict(tried)
        self.add(Replayed(**of_trial, file=name, elapsed_s=replay.elapsed_s))

    def replay(self, event: Replayed) -> Replay:
        """Return the replay that an event names. Raises RunError when it is damaged."""
        if event.file not in self._replays:
            self._replays[event.file] = _read_replay(self.run_dir, event.file)
        return self._replays[event.file]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def create(
    run_dir: Path, plan: Mapping[str, Any], *, command: Sequence[str] = (), is_part: bool = False
) -> Journal:
    """Make the folder of a new run. Raises RunError when a run is there already, or the folder
    cannot be written."""
    path = run_dir / JOURNAL
    if path.exists() and path.stat().st_size:
        raise RunError(f"{run_dir}: holds a run already", hint="Name another --run-dir.")
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        run_dir.mkdir(mode=0o700, exist_ok=True)
        before = frozenset(each.name for each in run_dir.iterdir() if each != path)
    except OSError as error:
        raise _cannot_write(run_dir, error.strerror or error) from error
    file = _opened(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    journal = Journal(run_dir, before=before, _file=file)
    journal.add(Planned(format=FORMAT, plan=dict(plan), command=tuple(command), is_part=is_part))
    return journal


def read(run_dir: Path) -> Journal:
    """Read a run without continuing it. Raises RunError when there is none."""
    return Journal(run_dir, _events(run_dir)[0])


def resume(run_dir: Path, plan: Mapping[str, Any], *, command: Sequence[str] = ()) -> Journal:
    """Open a run to continue it with the same plan.

    A last line that a crash left unfinished is dropped. The budget may be larger than it was: what
    was measured under a smaller one is not lost. Raises RunError when there is no run, it is
    damaged, or the plan differs.
    """
    path, replays = run_dir / JOURNAL, run_dir / REPLAYS
    _events(run_dir)  # that there is one
    with ExitStack() as failing:
        file = failing.enter_context(_opened(path, os.O_RDWR))  # locked before it is read
        events, complete_bytes = _events(run_dir)
        journal = Journal(run_dir, events, _file=file)
        before, now = journal.plan, msgspec.json.decode(msgspec.json.encode(dict(plan)))
        was_s, is_s = (
            parse_duration_s(str(each.get("budget", "1s")), option="--budget")
            for each in (before, now)
        )
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key) and not (key == "budget" and is_s > was_s):
                was, is_ = (msgspec.json.encode(each.get(key)).decode() for each in (before, now))
                raise RunError(
                    f"{path}:1: {key} was {was[:80]}, now {is_[:80]}",
                    hint="Resume with the options of the run, or start another --run-dir.",
                )
        try:
            file.truncate(complete_bytes)
            file.seek(0, os.SEEK_END)
            if replays.exists():
                files.make_own(replays)  # through a link nothing is removed
                for left in replays.glob(".tuner-*.tmp"):
                    left.unlink()
        except (OSError, TargetError) as error:
            raise _cannot_write(run_dir, error) from error
        if is_s > was_s:
            words = tuple(command) or journal.planned.command
            journal.add(msgspec.structs.replace(journal.planned, plan=now, command=words))
        failing.pop_all()
    return journal


def _events(run_dir: Path) -> tuple[list[Event], int]:
    """Return the events and how many bytes of complete lines they take. Raises RunError."""
    path = run_dir / JOURNAL
    try:
        content = files.read_regular(path)
    except FileNotFoundError:
        raise RunError(f"{path}: no run to resume", hint="Give the folder of a run.") from None
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}", hint="Make it readable.") from error
    content = content[: content.rfind(b"\n") + 1]
    events: list[Event] = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            event = _DECODER.decode(line)
            if isinstance(event, EngineStart):  # a twin of none of these would never end
                facts = event.facts
                assert min(facts.max_num_batched_tokens, facts.block_size, facts.max_model_len) > 0
        except (AssertionError, ValueError, RecursionError):
            raise RunError(f"{path}:{number}: not an event", hint=_ELSEWHERE) from None
        events.append(event)
    if not events or not isinstance(events[0], Planned) or events[0].format != FORMAT:
        raise RunError(f"{path}:1: no plan", hint=_ELSEWHERE)
    return events, len(content)


def _read_replay(run_dir: Path, name: str) -> Replay:
    path = run_dir / name
    if path.parent != run_dir / REPLAYS:
        raise RunError(f"{path}: is no part of this run", hint=_ELSEWHERE)
    try:
        with os.fdopen(files.opened_own(path, os.O_RDONLY), "rb") as file:
            data = np.load(file, allow_pickle=False)
            rest = msgspec.msgpack.decode(data["rest"].tobytes(), type=_REST)
            arrays = {name: data[name] for name in _ARRAYS}
        for array, dtype in zip(arrays.values(), _ARRAYS.values(), strict=True):
            assert (array.dtype, array.ndim) == (dtype, 1)
        assert arrays["requests"]["gaps"].sum() == len(arrays["gaps_s"])
        return Replay(**arrays, **msgspec.structs.asdict(rest))
    except Exception as error:  # whatever numpy and zipfile raise of a damaged file
        raise RunError(f"{path}: cannot be read back, it is damaged", hint=_ELSEWHERE) from error


def _opened(path: Path, flags: int) -> IO[bytes]:
    """Open a journal for this process alone: the system gives it back when the process ends."""
    try:
        file = os.fdopen(files.opened_own(path, flags), "r+b" if flags & os.O_RDWR else "ab", 0)
    except (OSError, TargetError) as error:
        raise _cannot_write(path.parent, error) from error
    with suppress(OSError):  # a network file system without locks
        if not files.lock(file.fileno()):
            file.close()
            hint = "Wait for it, or end it."
            raise RunError(f"{path.parent}: another tuner is at work here", hint=hint)
    return file


def _cannot_write(path: Path, why: object) -> RunError:
    return RunError(
        f"{path}: cannot be written ({why})",
        hint="Make room or choose another --run-dir; what is measured stays.",
    )
