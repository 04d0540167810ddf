"""A journal in memory: what a worker has measured, on its way to the run's own journal."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tuner.replay.records import Replay
from tuner.runs.journal import Event, Journal


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The result of one unit of work: its events, in order, and the replays that they name."""

    events: tuple[Event, ...]
    replays: dict[str, Replay]
    warnings: tuple[str, ...]
    failure: tuple[str, str] | None
    """Message and hint of what ended it, where that is no matter of its configuration."""


@dataclass(slots=True)
class Notes(Journal):
    """See Journal; nothing is written."""

    run_dir: Path = Path()
    replays: dict[str, Replay] = field(default_factory=dict)
    _reported: int = 0

    def append_all(self, events: Sequence[Event]) -> None:
        self.events.extend(events)

    def store(self, result: Replay, *, ahead: int = 0) -> str:
        name = f"{len(self.replays) + ahead}"
        self.replays[name] = result
        return name

    def replay(self, event: Event) -> Replay:
        return self.replays[event["file"]]

    def report(
        self, warnings: Sequence[str] = (), failure: tuple[str, str] | None = None
    ) -> WorkerReport:
        """Return all that is new since the last report."""
        new = tuple(self.events[self._reported :])
        self._reported = len(self.events)
        files = {event["file"] for event in new if "file" in event}
        replays = {name: self.replays[name] for name in files}
        return WorkerReport(new, replays, tuple(warnings), failure)
