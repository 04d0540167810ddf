"""What a run has measured so far, as its journal holds it."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from tuner.engines.seam import EngineFacts
from tuner.errors import RunError
from tuner.journal import Event, Journal
from tuner.measure import Measurement, measure
from tuner.probe import ProbeResult
from tuner.records import Replay
from tuner.slo import Slo, Unloaded, fit_unloaded
from tuner.uncertainty import Block, Trial
from tuner.window import Window

CONFIRMING = ("confirm", "headroom")
"""Purposes of replays that are no part of the curve."""


@dataclass(slots=True)
class Evidence:
    """The journal, read as measurements. Everything put in is on disk when the call returns."""

    journal: Journal
    _replays: dict[str, Replay] = field(default_factory=dict)

    def check(self) -> None:
        """Read all that stands in the journal once. Raises RunError when it makes no sense."""
        try:
            self.unloaded(), self.window(), self.starts_s(), self.replay_s(), self.spent_s()
            if self.starts_s():
                self.facts()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(
                f"{self.journal.run_dir}/journal.jsonl: an event makes no sense ({error!r})",
                hint="Start again in another --run-dir.",
            ) from error

    def check_machine(self, facts: EngineFacts) -> None:
        """Raise RunError when an engine is not of the machine and versions of this run's others."""
        for event in self.journal.of("start"):
            before = event["facts"]
            for what, now in (("device", facts.device), ("versions", facts.versions)):
                for key in sorted(before[what].keys() | now.keys()):
                    was, is_ = before[what].get(key), now.get(key)
                    if json.loads(json.dumps(is_)) != was:
                        raise RunError(
                            f"{self.journal.run_dir}: was measured with {what} {key}={was}, "
                            f"here it is {is_}",
                            hint="Numbers of two machines make no curve: start another --run-dir.",
                        )

    def add_start(self, facts: EngineFacts, *, purpose: str, max_num_seqs: int) -> None:
        content: dict[str, Any] = asdict(facts)
        self.journal.append("start", purpose=purpose, max_num_seqs=max_num_seqs, facts=content)

    def add_probes(self, results: list[ProbeResult]) -> None:
        self.journal.append("probe", results=[asdict(one) for one in results])

    def add_window(self, window: Window) -> None:
        self.journal.append("window", window=asdict(window))

    def add_late(self, what: str, why: str, elapsed_s: float) -> None:
        """Note a replay that was thrown away because our own sending was late."""
        self.journal.append("late", what=what, why=why, elapsed_s=elapsed_s)

    def add_replay(self, result: Replay, purpose: str) -> None:
        event = self.journal.append_replay(
            result,
            purpose=purpose,
            max_num_seqs=result.max_num_seqs,
            elapsed_s=result.elapsed_s,
        )
        self._replays[event["file"]] = result

    def facts(self) -> EngineFacts:
        """Return what the newest engine said of itself."""
        return EngineFacts(**list(self.journal.of("start"))[-1]["facts"])

    def unloaded(self) -> Unloaded | None:
        """Return what an idle engine does, None before it was probed."""
        for event in self.journal.of("probe"):
            results = event["results"]
            return fit_unloaded(
                [one["input_length"] for one in results],
                [one["ttft_s"] for one in results],
                [one["tpot_s"] for one in results if one["tpot_s"] is not None],
            )
        return None

    def window(self) -> Window | None:
        """Return the window that this run replays, None before it was chosen."""
        return next((Window(**event["window"]) for event in self.journal.of("window")), None)

    def blocks(self, slo: Slo) -> list[Block]:
        """Return the curve's replays in the order they were made, each measured under ``slo``."""
        return [
            Block(Trial(event["max_num_seqs"], event["purpose"]), measure([self._load(event)], slo))
            for event in self._curve()
        ]

    def curve(self, slo: Slo) -> tuple[Measurement, ...]:
        """Return one measurement a cap: its whole replays pooled, or its cut ones."""
        by_cap: dict[int, list[Replay]] = {}
        for event in self._curve():
            by_cap.setdefault(event["max_num_seqs"], []).append(self._load(event))
        return tuple(
            measure([one for one in replays if not one.cut] or replays, slo)
            for _, replays in sorted(by_cap.items())
        )

    def confirming(self, purpose: str, max_num_seqs: int, slo: Slo) -> Measurement | None:
        found = [
            self._load(event)
            for event in self.journal.of("replay")
            if (event["purpose"], event["max_num_seqs"]) == (purpose, max_num_seqs)
        ]
        return measure(found, slo) if found else None

    def starts_s(self) -> tuple[float, ...]:
        return tuple(event["facts"]["start_s"] for event in self.journal.of("start"))

    def replay_s(self) -> float:
        return float(sum(one["elapsed_s"] for one in self.journal.events if "elapsed_s" in one))

    def spent_s(self) -> float:
        """Return what counts against the budget: a start that only an interruption made necessary
        does not, so that a resumed run ends like one that was not interrupted."""
        starts: dict[tuple[str, int], float] = {
            (one["purpose"], one["max_num_seqs"]): one["facts"]["start_s"]
            for one in self.journal.of("start")
        }
        return self.replay_s() + sum(starts.values())

    def _curve(self) -> list[Event]:
        return [one for one in self.journal.of("replay") if one["purpose"] not in CONFIRMING]

    def _load(self, event: Event) -> Replay:
        if event["file"] not in self._replays:
            self._replays[event["file"]] = self.journal.replay(event)
        return self._replays[event["file"]]
