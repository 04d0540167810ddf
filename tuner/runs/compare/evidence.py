"""The evidence of a comparison so far, as its journal holds it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tuner.engines.seam import EngineFacts
from tuner.engines.workers.seam import Approach
from tuner.errors import EngineError
from tuner.replay.records import Replay
from tuner.runs.compare.calibration import ReferenceEngine, as_json, from_json
from tuner.runs.compare.comparison import ComparisonRow, ComparisonTable, compared, numbers_of
from tuner.runs.compare.load_levels import LENGTHS, Lengths, Level
from tuner.runs.compare.notes import note_against, notes_on
from tuner.runs.compare.settings import Cell
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Event, Journal
from tuner.runs.recorder import Recorder, now_s

CALIBRATION = "calibration"


@dataclass(frozen=True, slots=True)
class Tuned:
    max_num_seqs: int
    source: str
    """Where it comes from: a profile, an option, or a sweep with its verdict."""


@dataclass(slots=True)
class Comparing:
    """The journal, read as a comparison. Everything put in is on disk when the call returns."""

    journal: Journal
    evidence: Evidence = field(init=False)
    recorder: Recorder = field(init=False)
    _replays: dict[str, Replay] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.evidence, self.recorder = Evidence(self.journal), Recorder(self.journal)

    def add_start(self, facts: EngineFacts, session: str) -> None:
        self.evidence.check_machine(facts)
        size = int(str(facts.arguments["max_num_seqs"]))
        self.recorder.add_start(facts, purpose=session, max_num_seqs=size)

    def add_reference(
        self, reference: ReferenceEngine, *, max_model_len: int, elapsed_s: float
    ) -> None:
        self.recorder.append(
            "calibrated",
            reference=as_json(reference),
            max_model_len=max_model_len,
            elapsed_s=elapsed_s,
        )

    def add_replay(self, result: Replay, approach: str, block: int, cell: Cell) -> None:
        event = self.journal.append_replay(
            result,
            purpose=session_of(approach, block),
            max_num_seqs=result.max_num_seqs,
            elapsed_s=result.elapsed_s,
            window=block,
            trial=block,
            approach=approach,
            load=cell.load,
            lengths=cell.lengths,
            at_s=now_s(),
        )
        self._replays[event["file"]] = result

    def add_failure(self, error: EngineError, approach: str, block: int, cell: Cell | None) -> None:
        """Note a failure as the approach's result: of one replay, or of its start."""
        self.recorder.append(
            "failed",
            approach=approach,
            block=block,
            load=cell.load if cell else None,
            lengths=cell.lengths if cell else None,
            why=str(error),
            hint=error.hint,
        )

    def reference(self) -> tuple[ReferenceEngine, int] | None:
        """Return the engine of reference and its max_model_len; None before it was measured."""
        for event in self.journal.of("calibrated"):
            return from_json(event["reference"]), event["max_model_len"]
        return None

    def never_started(self, approach: str) -> bool:
        return any(one["load"] is None for one in self._failed(approach))

    def left(self, approach: str, block: int, cells: Sequence[Cell]) -> list[Cell]:
        """Return the replays of a session that neither were made nor failed."""
        done = {
            (event["load"], event["lengths"])
            for event in [*self._replayed(approach), *self._failed(approach)]
            if event.get("block", event.get("trial")) == block
        }
        return [cell for cell in cells if (cell.load, cell.lengths) not in done]

    def ended(self) -> int:
        """Return how many replays were made or failed."""
        return sum(event["event"] in {"replay", "failed"} for event in self.journal.events)

    def sessions(self) -> list[str]:
        """Return the sessions whose engines were started, in order, each once."""
        return list(dict.fromkeys(one["purpose"] for one in self.journal.of("start")))

    def block_s(self, block: int) -> float:
        """Return what a block has taken, engine starts included."""
        starts = {
            one["purpose"]: one["facts"]["start_s"]
            for one in self.journal.of("start")
            if one["purpose"].endswith(f" {block}")
        }
        replays = (one["elapsed_s"] for one in self.journal.of("replay") if one["trial"] == block)
        return float(sum(starts.values()) + sum(replays))

    def errors(self, approach: str, cell: Cell) -> tuple[str, ...]:
        """Return what went wrong with an approach and this traffic, each text once."""
        return tuple(
            dict.fromkeys(
                f"{one['why']}. {one['hint']}"
                for one in self._failed(approach)
                if one["load"] is None or (one["load"], one["lengths"]) == (cell.load, cell.lengths)
            )
        )

    def tables(
        self, levels: Sequence[Level], approaches: Sequence[Approach]
    ) -> list[ComparisonTable]:
        """Return one table for each load and kind of lengths."""
        return [self._table(level, kind, approaches) for level in levels for kind in LENGTHS]

    def _table(
        self, level: Level, lengths: Lengths, approaches: Sequence[Approach]
    ) -> ComparisonTable:
        cell = Cell(level.name, lengths)
        blocks = {one.name: self._blocks(one.name, cell) for one in approaches}
        numbers = {
            name: numbers_of(list(found.values())) for name, found in blocks.items() if found
        }
        against_first = compared(blocks, approaches[0].name)
        against_untuned = compared(blocks, "untuned")
        rows = []
        for one in approaches:
            seen = numbers.get(one.name)
            notes: tuple[str, ...] = ()
            if seen is not None:
                alone = numbers.get("worker") if one.name == "two-workers" else None
                notes = notes_on(seen, alone=alone)
                if one.name in {"tuned", "profile"}:
                    notes += note_against(against_untuned[one.name], "untuned")
            rows.append(
                ComparisonRow(
                    approach=one.name,
                    title=one.title,
                    max_num_seqs=next(iter(blocks[one.name].values())).max_num_seqs
                    if seen
                    else None,
                    numbers=seen,
                    ratios=against_first[one.name],
                    notes=notes,
                    errors=self.errors(one.name, cell),
                )
            )
        return ComparisonTable(level.name, level.in_flight, lengths, tuple(rows))

    def _blocks(self, approach: str, cell: Cell) -> dict[int, Replay]:
        return {
            event["trial"]: self._load(event)
            for event in self._replayed(approach)
            if (event["load"], event["lengths"]) == (cell.load, cell.lengths)
        }

    def _replayed(self, approach: str) -> Iterator[Event]:
        return (one for one in self.journal.of("replay") if one["approach"] == approach)

    def _failed(self, approach: str) -> Iterator[Event]:
        return (one for one in self.journal.of("failed") if one["approach"] == approach)

    def _load(self, event: Event) -> Replay:
        if event["file"] not in self._replays:
            self._replays[event["file"]] = self.journal.replay(event)
        return self._replays[event["file"]]


def session_of(approach: str, block: int) -> str:
    return f"{approach} {block}"
