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
from typing import IO, Any, TypeVar, dataclass_transform

import msgspec
import numpy as np

from tuner.engines.arguments import WHICH_DEVICE
from tuner.engines.provenance import environment_differs
from tuner.engines.seam import ITERATION, ArgumentValue, EngineFacts
from tuner.errors import RunError
from tuner.replay.numbers import Measurement, measure
from tuner.replay.records import DEVICE, REQUEST, ProbeResult, Replay
from tuner.replay.soundness import OURS, disturbance
from tuner.system import files
from tuner.traffic.slo import Slo, Unloaded, fit_unloaded
from tuner.traffic.window import Window, parse_duration_s

JOURNAL, REPLAYS = "journal.jsonl", "replays"

NO_SENSE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError),
    *(TypeError, ValueError),
)
"""Errors that may come of what is well formed and was not written by tuner."""

_ELSEWHERE = "Start again in another --run-dir."

RUNGS = ("ladder", "repeat")
"""Purposes of trials whose window was replayed, or cut because it had lost."""

CONFIRMING = ("confirm", "headroom")
"""Purposes of replays that the search does not see."""

Configuration = Mapping[str, ArgumentValue]
"""Engine argument → value, where it is not the starter's own."""

# Events


@dataclass_transform(frozen_default=True)
class Event(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="event", forbid_unknown_fields=True
):
    """A line of the journal. A field that is missing, unknown or of another type makes it none."""

    at_s: float = 0.0
    """When it was written, on the event loop's clock."""


class Planned(Event, tag="plan"):
    """What every measurement rests on, and the command that asked for it: the first event, and
    again where a larger budget was given."""

    plan: dict[str, Any]
    command: tuple[str, ...] = ()
    is_part: bool = False
    """Whether it is a part of the run in the folder above."""


class EngineStart(Event, tag="start"):
    """An engine was started: for what, at which size, and what it reported of itself."""

    purpose: str
    max_num_seqs: int
    facts: EngineFacts
    key: str = ""
    """What trials must have in common to share it."""


class Probed(Event, tag="probe"):
    """What an idle engine of this purpose does, request by request."""

    purpose: str
    results: tuple[ProbeResult, ...]
    flaws: tuple[str, ...] = ()
    elapsed_s: float = 0.0


class Selection(Event, tag="choice"):
    """The part of the trace, and the windows of it that a step replays."""

    part: Window
    windows: tuple[Window, ...]
    step_s: float


class Tried(Event):
    """What was to be measured."""

    purpose: str
    max_num_seqs: int
    configuration: Configuration = {}
    window: Window | None = None
    """None of a ramp."""

    approach: str = ""
    load: str = ""
    """Of a comparison: the way of serving, and the traffic."""


class Replayed(Tried, kw_only=True, tag="replay"):
    """A replay or a ramp, and the file that holds it."""

    file: str
    elapsed_s: float


class Failed(Tried, kw_only=True, tag="failed"):
    """What could not be measured, and why."""

    why: str
    hint: str = ""


class Gathered(Event, tag="gathered"):
    """The search has ended: nothing more is measured before what confirms it."""

    complete: bool
    """Whether nothing but itself ended it."""

    chosen: Configuration = {}
    pairs: tuple[Window, ...] = ()
    """The windows in which the chosen configuration is compared with the knee, pair by pair."""


class Repeated(Event, tag="late"):
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
        return [*self.of(Planned)][-1]

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
            raise _cannot_write(self.run_dir, error) from error
        self.events.append(stamped)

    def add_replay(self, replay: Replay, tried: Tried) -> None:
        """Write a replay, then the event that names it. Raises InputError."""
        name, content = f"{REPLAYS}/{sum(1 for _ in self.of(Replayed)):03}.npz", io.BytesIO()
        rest = msgspec.msgpack.encode({f: getattr(replay, f) for f in _REST.__struct_fields__})
        arrays = {each: getattr(replay, each) for each in _ARRAYS}
        np.savez_compressed(content, rest=np.frombuffer(rest, np.uint8), **arrays)
        files.make_own(self.run_dir / REPLAYS)
        files.write_own(self.run_dir / name, content.getvalue())
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

    # Engines

    def starts(self) -> list[EngineStart]:
        return [*self.of(EngineStart)]

    def facts(self) -> EngineFacts:
        """Return what the newest engine reported of itself."""
        return self.starts()[-1].facts

    def start_s_of(self) -> dict[tuple[str, int], float]:
        """Return (purpose, size) of each engine, in order → what its newest start took: one that
        was started again because its run was interrupted counts once."""
        return {(each.purpose, each.max_num_seqs): each.facts.start_s for each in self.starts()}

    def start_needed_s(self, purpose: str, size: int) -> float:
        """Return what the start of an engine takes of the budget: as the newest did; nothing of one
        that was started before."""
        return 0.0 if (purpose, size) in self.start_s_of() else self.facts().start_s

    def check_machine(self, facts: EngineFacts) -> None:
        """Raise RunError when an engine is not of the machine, versions and environment of this
        run's others. What one does not report is not compared."""
        for start in self.starts():
            for what in ("device", "versions", "environment"):
                was, now = (
                    each and {k: v for k, v in each.items() if k not in WHICH_DEVICE}
                    for each in (getattr(start.facts, what), getattr(facts, what))
                )
                if (differs := environment_differs(was, now)) is not None:
                    raise RunError(
                        f"{self.run_dir}: {differs}",
                        hint="Numbers of two machines make no curve: start another --run-dir.",
                    )

    # Idle engines

    def probed(self, purpose: str) -> tuple[ProbeResult, ...]:
        """Return the lone requests on an idle engine of this purpose; none before it was probed."""
        return next((each.results for each in self.of(Probed) if each.purpose == purpose), ())

    def unloaded(self, purpose: str = "ladder") -> Unloaded | None:
        """Return what an idle engine of this purpose does, None before it was probed."""
        results = self.probed(purpose)
        return (
            fit_unloaded(
                [each.input_length for each in results],
                [each.ttft_s for each in results],
                [each.tpot_s for each in results if each.tpot_s is not None],
            )
            if results
            else None
        )

    # Trials

    def selection(self) -> Selection | None:
        """Return what this run replays, None before it was selected."""
        return self.last(Selection)

    def is_complete(self) -> bool:
        """Whether everything that the decision asks for was measured."""
        return any(event.complete for event in self.of(Gathered))

    def trials(self) -> list[Replayed | Failed]:
        """Return all that was tried, in order."""
        return [each for each in self.events if isinstance(each, Replayed | Failed)]

    def made(self, *purposes: str) -> list[Replayed]:
        """Return what was replayed for these purposes, in order; by default all of the search."""
        return [
            each
            for each in self.of(Replayed)
            if (each.purpose in purposes if purposes else each.purpose not in CONFIRMING)
        ]

    def replays(self, *purposes: str) -> list[Replay]:
        return [self.replay(each) for each in self.made(*purposes)]

    def numbers(self, trial: Replayed, slo: Slo) -> Measurement:
        return measure([self.replay(trial)], slo)

    def measured(self, slo: Slo) -> dict[int, Measurement]:
        """Return cap → its rungs pooled: those that were replayed to their end, or else all. Of one
        that another SLO had cut nothing is known of what it would serve under this one."""
        known = [each for each in self.replays(*RUNGS) if not each.is_cut_under_another(slo)]
        result = {}
        for cap in sorted({each.max_num_seqs for each in known}):
            own = [each for each in known if each.max_num_seqs == cap]
            result[cap] = measure([each for each in own if not each.cut] or own, slo)
        return result

    def confirming(self, purpose: str, max_num_seqs: int) -> list[Replay]:
        """Return what was replayed at a cap on the confirming engine."""
        return [each for each in self.replays(purpose) if each.max_num_seqs == max_num_seqs]

    # Time

    def replay_s(self) -> float:
        """Return the seconds of all replays and ramps, those that were made again included."""
        events: list[Replayed | Repeated] = [*self.of(Replayed), *self.of(Repeated)]
        return sum(event.elapsed_s for event in events)

    def spent_s(self) -> float:
        """Return the seconds that count against the budget. A start that only an interruption made
        necessary does not, so that a resumed run ends like one that was not interrupted."""
        probes_s = sum(event.elapsed_s for event in self.of(Probed))
        return self.replay_s() + probes_s + sum(self.start_s_of().values())

    # What else was at work

    def flaws(self) -> Iterator[str]:
        """Yield what besides the engine shaped what counts: how late our own client was (``OURS``),
        and what else was at work, and when. Of what was replayed again only the last counts."""
        for event in self.of(Probed):
            yield from (f"{why} while an idle engine was timed" for why in event.flaws)
        counted = {
            (each.purpose in RUNGS or each.purpose, each.max_num_seqs): self.replay(each)
            for each in self.made("ramp", *RUNGS, *CONFIRMING)
        }
        for replay in counted.values():
            when = f" while {replay.max_num_seqs} was replayed"
            for flaw in filter(None, [*replay.flaws, disturbance(replay.device)]):
                yield flaw if flaw.startswith(OURS) else flaw + when


def read(run_dir: Path) -> Journal:
    """Read a run without continuing it. Raises RunError when there is none."""
    events, _ = _events(run_dir)
    if not events:
        raise RunError(f"{run_dir / JOURNAL}:1: no plan", hint=_ELSEWHERE)
    return Journal(run_dir, events)


def opened(
    run_dir: Path, plan: Mapping[str, Any], *, command: Sequence[str] = (), is_part: bool = False
) -> Journal:
    """Open the run of a folder to continue it with the same plan, or begin one there.

    A last line that a crash left unfinished is dropped. The budget may be larger than it was: what
    was measured under a smaller one is not lost. Raises RunError when the run is damaged, or the
    plan differs, and InputError where it cannot be written.
    """
    path, replays = run_dir / JOURNAL, run_dir / REPLAYS
    planned = Planned(dict(plan), tuple(command), is_part)
    with ExitStack() as failing:
        try:
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            run_dir.mkdir(mode=0o700, exist_ok=True)
            before = frozenset(each.name for each in run_dir.iterdir() if each != path)
            file = failing.enter_context(_locked(path))  # before it is read
            events, complete_bytes = _events(run_dir)
            is_new = not events or _is_raised(events, planned, path)
            file.truncate(complete_bytes)
            if replays.exists():
                files.make_own(replays)  # through a link nothing is removed
                for left in replays.glob(".tuner-*.tmp"):
                    left.unlink()
        except OSError as error:
            raise _cannot_write(run_dir, error) from error
        journal = Journal(run_dir, events, None if events else before, file)
        if is_new:
            journal.add(planned)
        failing.pop_all()
    return journal


def _is_raised(events: Sequence[Event], planned: Planned, path: Path) -> bool:
    """Return whether the plan has a larger budget than a run's. Raises RunError where anything else
    differs."""
    before = [each.plan for each in events if isinstance(each, Planned)][-1]
    now = msgspec.json.decode(msgspec.json.encode(planned.plan))
    was_s, is_s = (
        parse_duration_s(str(each.get("budget", "1s")), option="--budget") for each in (before, now)
    )
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and not (key == "budget" and is_s > was_s):
            was, is_ = (msgspec.json.encode(each.get(key)).decode() for each in (before, now))
            raise RunError(
                f"{path}:1: {key} was {was[:80]}, now {is_[:80]}",
                hint="Resume with the options of the run, or start another --run-dir.",
            )
    return is_s > was_s


def _locked(path: Path) -> IO[bytes]:
    """Open a journal for this process alone: the system gives it back when the process ends."""
    descriptor = files.opened_own(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)
    file = os.fdopen(descriptor, "r+b", 0)
    with suppress(OSError):  # a network file system without locks
        if not files.lock(descriptor):
            file.close()
            hint = "Wait for it, or end it."
            raise RunError(f"{path.parent}: another tuner is at work here", hint=hint)
    return file


def _events(run_dir: Path) -> tuple[list[Event], int]:
    """Return the events and how many bytes of complete lines they take. Raises RunError."""
    path, events = run_dir / JOURNAL, list[Event]()
    try:
        content = files.read_regular(path)
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}", hint="Give the folder of a run.") from error
    lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            event = _DECODER.decode(line)
            if isinstance(event, EngineStart):  # a twin of none of these would never end
                facts = event.facts
                assert min(facts.max_num_batched_tokens, facts.block_size, facts.max_model_len) > 0
        except (AssertionError, ValueError, RecursionError):
            raise RunError(f"{path}:{number}: not an event", hint=_ELSEWHERE) from None
        events.append(event)
    if events and not isinstance(events[0], Planned):
        raise RunError(f"{path}:1: no plan", hint=_ELSEWHERE)
    return events, sum(map(len, lines))


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


def _cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path}: cannot be written ({error.strerror or error})",
        hint="Make room or choose another --run-dir; what is measured stays.",
    )
