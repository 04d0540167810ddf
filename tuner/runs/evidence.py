"""The evidence of a run so far: its events, read as measurements."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from tuner.engines.arguments import WHICH_DEVICE
from tuner.engines.seam import EngineFacts, IterationLog
from tuner.errors import RunError
from tuner.replay.numbers import Measurement, measure
from tuner.replay.records import ProbeResult, Replay
from tuner.replay.soundness import OURS, disturbance
from tuner.runs.journal import (
    EngineStart,
    Failed,
    Gathered,
    Journal,
    Probed,
    Repeated,
    Replayed,
    Selection,
)
from tuner.traffic.slo import Slo, Unloaded, fit_unloaded
from tuner.twin.windows import Purpose, Trial

RUNGS = ("ladder", "repeat", "drift_replay")
"""Purposes of trials whose window was replayed, or cut because it had lost."""

CONFIRMING = ("confirm", "headroom")
"""Purposes of replays that the search does not see."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A journal, read as measurements, as it stands."""

    journal: Journal

    # Engines

    def starts(self) -> list[EngineStart]:
        return [*self.journal.of(EngineStart)]

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
        run's others."""
        for start in self.starts():
            for what in ("device", "versions", "environment"):
                then, now = getattr(start.facts, what), getattr(facts, what)
                if then is None or now is None:
                    continue  # a simulated engine
                for key in sorted((then.keys() | now.keys()) - WHICH_DEVICE):
                    was, is_ = then.get(key), now.get(key)
                    if json.loads(json.dumps(is_)) != was:
                        raise RunError(
                            f"{self.journal.run_dir}: was measured with {what} {key}={was}, "
                            f"here it is {is_}",
                            hint="Numbers of two machines make no curve: start another --run-dir.",
                        )

    # Idle engines

    def _probe(self, purpose: str) -> Probed | None:
        return next((each for each in self.journal.of(Probed) if each.purpose == purpose), None)

    def unloaded(self, purpose: str = "ladder") -> Unloaded | None:
        """Return what an idle engine of this purpose does, None before it was probed."""
        if (probed := self._probe(purpose)) is None:
            return None
        return fit_unloaded(
            [each.input_length for each in probed.results],
            [each.ttft_s for each in probed.results],
            [each.tpot_s for each in probed.results if each.tpot_s is not None],
        )

    def probed(self) -> tuple[ProbeResult, ...]:
        """Return the lone requests through the front end of the server that confirms; none where
        that was no server of ours."""
        probe = self._probe("confirm")
        is_served = any(start.facts.is_served for start in self.starts())
        return probe.results if probe is not None and is_served else ()

    # Trials

    def selection(self) -> Selection | None:
        """Return what this run replays, None before it was selected."""
        return self.journal.last(Selection)

    def is_complete(self) -> bool:
        """Whether everything that the decision asks for was measured."""
        return any(event.complete for event in self.journal.of(Gathered))

    def trials(self) -> list[Replayed | Failed]:
        """Return all that was tried, in order."""
        return [each for each in self.journal.events if isinstance(each, Replayed | Failed)]

    def made(self, *purposes: str) -> list[Replayed]:
        """Return what was replayed for these purposes, in order; by default all of the search."""
        return [
            each
            for each in self.journal.of(Replayed)
            if (each.purpose in purposes if purposes else each.purpose not in CONFIRMING)
        ]

    def steps(self) -> list[Trial]:
        """Return what the ladder has measured, in order."""
        return [Trial(each.max_num_seqs, cast("Purpose", each.purpose)) for each in self.made()]

    def replays(self, *purposes: str) -> list[Replay]:
        return [self.journal.replay(each) for each in self.made(*purposes)]

    def numbers(self, trial: Replayed, slo: Slo) -> Measurement:
        return measure([self.journal.replay(trial)], slo)

    def measured(self, slo: Slo) -> dict[int, Measurement]:
        """Return cap → its rungs pooled: those that were replayed to their end, or else all. Where
        another SLO had cut one, nothing is known of what it would serve under this one."""
        of_cap: dict[int, list[Replay]] = defaultdict(list)
        for replay in self.replays(*RUNGS):
            of_cap[replay.max_num_seqs].append(replay)
        uncut = {
            cap: [replay for replay in replays if not replay.cut] or replays
            for cap, replays in sorted(of_cap.items())
        }
        return {
            cap: measure(replays, slo)
            for cap, replays in uncut.items()
            if not any(replay.is_cut_under_another(slo) for replay in replays)
        }

    def confirming(self, purpose: str, max_num_seqs: int) -> list[Replay]:
        """Return what was replayed at a cap on the confirming engine."""
        return [each for each in self.replays(purpose) if each.max_num_seqs == max_num_seqs]

    def logs(self, trials: Sequence[Replayed] | None = None) -> list[IterationLog]:
        """Return the iterations of these trials, by default of all of the search, in order."""
        replays = map(self.journal.replay, self.made() if trials is None else trials)
        return [replay.iterations for replay in replays if len(replay.iterations)]

    # Time

    def replay_s(self) -> float:
        """Return the seconds of all replays and ramps, those that were made again included."""
        events: list[Replayed | Repeated] = [*self.journal.of(Replayed), *self.journal.of(Repeated)]
        return sum(event.elapsed_s for event in events)

    def spent_s(self) -> float:
        """Return the seconds that count against the budget. A start that only an interruption made
        necessary does not, so that a resumed run ends like one that was not interrupted."""
        probes_s = sum(event.elapsed_s for event in self.journal.of(Probed))
        return self.replay_s() + probes_s + sum(self.start_s_of().values())

    # What else was at work

    def _counted(self, *purposes: str) -> list[Replay]:
        """Return what counts: of what was replayed again only the last."""
        last = {
            (each.purpose in RUNGS or each.purpose, each.max_num_seqs): each
            for each in self.made(*purposes)
        }
        return [self.journal.replay(each) for each in last.values()]

    def disturbances(self) -> Iterator[str]:
        """Yield what besides the engine and our own client was at work, and when, of all that
        counts."""
        for event in self.journal.of(Probed):
            yield from (f"{why} while an idle engine was timed" for why in event.flaws)
        for replay in self._counted("ramp", *RUNGS, *CONFIRMING):
            flaws = [flaw for flaw in replay.flaws if not flaw.startswith(OURS)]
            flaws += filter(None, [disturbance(replay.device)])
            yield from (f"{why} while {replay.max_num_seqs} was replayed" for why in flaws)

    def lateness(self) -> str | None:
        """Say how late our own client was in what counts; None where it was in time."""
        counted = self._counted(*RUNGS, *CONFIRMING)
        flaws = (flaw for replay in counted for flaw in replay.flaws if flaw.startswith(OURS))
        return next(flaws, None)
