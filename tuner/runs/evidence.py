"""The evidence of a run so far: its events, read as measurements."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from tuner.engines.arguments import WHICH_DEVICE
from tuner.engines.seam import EngineFacts, IterationLog
from tuner.errors import RunError
from tuner.replay.device_use import device_use, disturbance
from tuner.replay.numbers import Measurement, measure
from tuner.replay.records import ProbeResult, Replay
from tuner.replay.soundness import OURS
from tuner.runs.events import (
    EngineStart,
    Gathered,
    Probed,
    Repeated,
    Replayed,
    Selection,
    TrialBegun,
    TrialEnded,
)
from tuner.runs.journal import NO_SENSE, Journal
from tuner.traffic.slo import Slo, Unloaded, fit_unloaded
from tuner.twin.windows import Block, Trial

RUNGS = ("ladder", "repeat", "drift_replay")
"""Purposes of trials whose window was replayed, or cut because it had lost."""

CONFIRMING = ("confirm", "headroom")
"""Purposes of replays that are no trial of a search."""


@dataclass(frozen=True, slots=True)
class MadeTrial:
    """A trial as far as it was made: what was begun, what was replayed of it, and how it ended."""

    begun: TrialBegun
    replay: Replay | None
    ended: TrialEnded | None

    @property
    def trial(self) -> Trial:
        return Trial(self.begun.max_num_seqs, self.begun.purpose)  # type: ignore[arg-type]

    @property
    def failed(self) -> str | None:
        return None if self.ended is None else self.ended.failed

    @property
    def replayed(self) -> Replay:
        """Return the replay of a trial that ended well."""
        assert self.replay is not None
        return self.replay

    def numbers(self, slo: Slo) -> Measurement:
        return measure([self.replayed], slo)

    def block(self, slo: Slo) -> Block:
        return Block(self.trial, self.numbers(slo))


@dataclass(frozen=True, slots=True)
class Evidence:
    """A journal, read as measurements, as it stands."""

    journal: Journal

    def check(self, *more: Callable[[], object]) -> None:
        """Raise RunError where events make no sense together; ``more`` reads them too."""
        try:
            for each in (*more, self.unloaded, self.under_way):
                each()
            for start in self.starts():  # a twin with these would never end
                facts = start.facts
                assert min(facts.max_num_batched_tokens, facts.block_size, facts.max_model_len) > 0
        except NO_SENSE as error:
            raise RunError(
                f"{self.journal.run_dir}/journal.jsonl: an event makes no sense "
                f"({repr(error)[:200]})",
                hint="Start again in another --run-dir.",
            ) from error

    # Engines

    def starts(self) -> list[EngineStart]:
        return [*self.journal.of(EngineStart)]

    def facts(self) -> EngineFacts:
        """Return what the newest engine reported of itself."""
        return self.starts()[-1].facts

    def starts_s(self) -> tuple[float, ...]:
        return tuple(start.facts.start_s for start in self.starts())

    def start_s_of(self) -> dict[tuple[str, int], float]:
        """Return (purpose, size) of each engine, in order → what its newest start took: one that
        was started again because its run was interrupted counts once."""
        return {(each.purpose, each.max_num_seqs): each.facts.start_s for each in self.starts()}

    def start_needed_s(self, purpose: str, size: int) -> float:
        """Return what the start of an engine takes of the budget: as the newest did; nothing of one
        that was started before an interruption."""
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
        is_served = any(start.facts.engine == "serve" for start in self.starts())
        return tuple(probe.results) if probe is not None and is_served else ()

    # Trials

    def selection(self) -> Selection | None:
        """Return what this run replays, None before it was selected."""
        return next(self.journal.of(Selection), None)

    def is_complete(self) -> bool:
        """Whether everything that the decision asks for was measured."""
        return any(event.complete for event in self.journal.of(Gathered))

    def begun(self) -> list[TrialBegun]:
        return [*self.journal.of(TrialBegun)]

    def count(self) -> int:
        """Return how many trials have ended."""
        return sum(1 for _ in self.journal.of(TrialEnded))

    def under_way(self) -> TrialBegun | None:
        """Return the trial that was begun and not ended: this run's or an interrupted one's."""
        return next(iter(self.begun()[self.count() :]), None)

    def made(self, *purposes: str, under_way: bool = False) -> list[MadeTrial]:
        """Return every trial that has ended, in order, and with ``under_way`` the one that has not;
        or those of these purposes that did not fail."""
        replays = {
            event.trial: self.journal.replay(event)
            for event in self.journal.of(Replayed)
            if event.purpose not in CONFIRMING
        }
        ended: list[TrialEnded | None] = [*self.journal.of(TrialEnded)]
        ended += [None] * under_way
        every = enumerate(zip(self.begun(), ended, strict=False))
        made = [MadeTrial(begun, replays.get(number), end) for number, (begun, end) in every]
        if not purposes:
            return made
        return [each for each in made if each.begun.purpose in purposes and each.failed is None]

    def rungs(self) -> list[MadeTrial]:
        """Return the rungs of the ladder and their repeats, in order."""
        return self.made(*RUNGS)

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

    # Replays

    def _replays(self, *purposes: str) -> Iterator[tuple[Replayed, Replay]]:
        for event in self.journal.of(Replayed):
            if event.purpose in purposes:
                yield event, self.journal.replay(event)

    def confirming(self, purpose: str, max_num_seqs: int) -> list[Replay]:
        """Return what was replayed at a cap on the confirming engine."""
        replays = self._replays(purpose)
        return [replay for event, replay in replays if event.max_num_seqs == max_num_seqs]

    def _last(self, *purposes: str) -> list[Replay]:
        """Return what counts: of what was replayed again only the last."""
        last = {
            (event.purpose in RUNGS or event.purpose, event.max_num_seqs): replay
            for event, replay in self._replays(*purposes)
        }
        return [*last.values()]

    def disturbances(self) -> Iterator[str]:
        """Yield what else than the engine and its client was at work, and when, of all that
        counts."""
        for event in self.journal.of(Probed):
            yield from (f"{why} while an idle engine was timed" for why in event.flaws)
        for replay in self._last("ramp", *RUNGS, *CONFIRMING):
            cap = replay.max_num_seqs
            yield from (f"{why} while {cap} was replayed" for why in disturbances_of(replay))

    def lateness(self) -> str | None:
        """Say how late our own client was in what counts; None where it was in time."""
        counted = self._last(*RUNGS, *CONFIRMING)
        flaws = (flaw for replay in counted for flaw in replay.flaws if flaw.startswith(OURS))
        return next(flaws, None)

    def logs(self, trials: Collection[int] | None = None) -> list[IterationLog]:
        """Return the iterations of every replay and ramp but the confirming ones, in order; or of
        these trials, by their numbers."""
        replays = (
            self.journal.replay(event)
            for event in self.journal.of(Replayed)
            if event.purpose not in CONFIRMING and (trials is None or event.trial in trials)
        )
        return [replay.iterations for replay in replays if len(replay.iterations)]


# Rungs


def measured(rungs: Sequence[MadeTrial], slo: Slo) -> dict[int, Measurement]:
    """Return cap → its replays pooled. Where another SLO had cut one, nothing is known of what it
    would serve under this one."""
    return {
        cap: measure(replays, slo)
        for cap, replays in counted(rungs).items()
        if not any(replay.is_cut_under_another(slo) for replay in replays)
    }


def counted(rungs: Sequence[MadeTrial]) -> dict[int, list[Replay]]:
    """Return cap → its uncut replays without a disturbance, or else the uncut ones, or else all."""
    of_cap: dict[int, list[Replay]] = defaultdict(list)
    for rung in rungs:
        of_cap[rung.begun.max_num_seqs].append(rung.replayed)
    result = {}
    for cap, replays in sorted(of_cap.items()):
        uncut = [replay for replay in replays if not replay.cut]
        calm = [replay for replay in uncut if not any(disturbances_of(replay))]
        result[cap] = calm or uncut or replays
    return result


def disturbances_of(replay: Replay) -> Iterator[str]:
    """Yield what besides the engine and our own client was at work during a replay."""
    yield from (flaw for flaw in replay.flaws if not flaw.startswith(OURS))
    if (flaw := disturbance(device_use([replay.device]))) is not None:
        yield flaw
