"""The evidence of a run so far: its events, read as measurements."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.engines.arguments import WHICH_DEVICE
from tuner.engines.seam import EngineFacts
from tuner.errors import RunError
from tuner.replay.device_use import device_use, disturbance, share_taken
from tuner.replay.numbers import Measurement, measure
from tuner.replay.records import Replay
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
from tuner.twin.front_end import Passages, probed_passages
from tuner.twin.law import Segment
from tuner.twin.windows import Block, Trial

RUNGS = ("ladder", "repeat", "drift_replay", "tie_break")
"""Purposes of trials whose windows were replayed whole, or cut because they had lost."""

CONFIRMING = ("confirm", "headroom")
"""Purposes of replays that are no trial of a search."""


@dataclass(frozen=True, slots=True)
class MadeTrial:
    """A trial as far as it was made: what was begun, what was replayed of it, and how it ended."""

    begun: TrialBegun
    replays: Mapping[int, Replay]
    """Number of a window → its replay."""

    ended: TrialEnded | None

    @property
    def trial(self) -> Trial:
        return Trial(self.begun.max_num_seqs, self.begun.purpose)  # type: ignore[arg-type]

    @property
    def failed(self) -> str | None:
        return None if self.ended is None else self.ended.failed

    @property
    def cut(self) -> str | None:
        """Say in which of its windows it was ended early, and why; None when it was not."""
        for number, replay in self.replays.items():
            if replay.cut is not None:
                return f"window {number + 1} of {len(self.begun.windows)}: {replay.cut}"
        return None

    def numbers(self, slo: Slo) -> Measurement:
        return measure([*self.replays.values()], slo)

    def block(self, slo: Slo) -> Block:
        return Block(self.trial, self.numbers(slo))


@dataclass(frozen=True, slots=True)
class Evidence:
    """A journal, read as measurements, as it stands: of the engines that were started, of idle ones
    and what stands before them, of trials and how far they came, of replays."""

    journal: Journal

    def check(self, *more: Callable[[], object]) -> None:
        """Raise RunError where events make no sense together; ``more`` reads them too."""
        try:
            for each in more:
                each()
            self.unloaded(), self.under_way()
            for start in self.starts():
                _check_limits(start.facts)
        except NO_SENSE as error:
            raise RunError(
                f"{self.journal.run_dir}/journal.jsonl: an event makes no sense "
                f"({repr(error)[:200]})",
                hint="Start again in another --run-dir.",
            ) from error

    # Engines

    def starts(self) -> list[EngineStart]:
        return list(self.journal.of(EngineStart))

    def facts(self) -> EngineFacts:
        """Return what the newest engine reported of itself."""
        return self.starts()[-1].facts

    def starts_s(self) -> tuple[float, ...]:
        return tuple(start.facts.start_s for start in self.starts())

    def engines(self) -> list[int]:
        """Return the sizes of the engines that were started, in order; one that was started again
        because its run was interrupted counts once."""
        return [size for _, size in self._each_start_s()]

    def _each_start_s(self) -> dict[tuple[str, int], float]:
        """Return (purpose, size) of each engine → what its newest start took."""
        return {(each.purpose, each.max_num_seqs): each.facts.start_s for each in self.starts()}

    def start_needed_s(self, purpose: str, size: int) -> float:
        """Return what the start of an engine takes of the budget: as the newest did; nothing of one
        that was started before an interruption."""
        is_paid = (purpose, size) in self._each_start_s()
        return 0.0 if is_paid else self.facts().start_s

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

    def unloaded(self, purpose: str = "ladder") -> Unloaded | None:
        """Return what an idle engine of this purpose does, None before it was probed."""
        for probed in self._probes(purpose):
            return fit_unloaded(
                [each.input_length for each in probed.results],
                [each.ttft_s for each in probed.results],
                [each.tpot_s for each in probed.results if each.tpot_s is not None],
            )
        return None

    def probed(self) -> list[Passages]:
        """Return the ways of the probes through the front end of the server that confirms; none
        where that was no server of ours."""
        if all(start.facts.engine != "serve" for start in self.starts()):
            return []
        return [probed_passages(each.results) for each in self._probes("confirm")]

    def _probes(self, purpose: str) -> list[Probed]:
        return [event for event in self.journal.of(Probed) if event.purpose == purpose]

    # Trials

    def selection(self) -> Selection | None:
        """Return what this run replays, None before it was selected."""
        return next(self.journal.of(Selection), None)

    def is_complete(self) -> bool:
        """Whether everything that the decision asks for was measured."""
        return any(event.complete for event in self.journal.of(Gathered))

    def begun(self) -> list[TrialBegun]:
        return list(self.journal.of(TrialBegun))

    def count(self) -> int:
        """Return how many trials have ended."""
        return sum(1 for _ in self.journal.of(TrialEnded))

    def under_way(self) -> TrialBegun | None:
        """Return the trial that was begun and not ended: this run's or an interrupted one's."""
        return next(iter(self.begun()[self.count() :]), None)

    def made(self, *purposes: str, under_way: bool = False) -> list[MadeTrial]:
        """Return every trial that has ended, in order, and with ``under_way`` the one that has not;
        or those of these purposes that did not fail."""
        replays: dict[int, dict[int, Replay]] = defaultdict(dict)
        for event in self.journal.of(Replayed):
            if event.purpose not in CONFIRMING:
                replays[event.trial][event.window] = self.journal.replay(event)
        ended: list[TrialEnded | None] = [*self.journal.of(TrialEnded)]
        ended += [None] * under_way
        every = enumerate(zip(self.begun(), ended, strict=False))
        made = [MadeTrial(begun, replays[number], end) for number, (begun, end) in every]
        if not purposes:
            return made
        return [each for each in made if each.begun.purpose in purposes and each.failed is None]

    def trials(self) -> list[Trial]:
        return [each.trial for each in self.made()]

    def rungs(self, *, under_way: bool = False) -> list[MadeTrial]:
        """Return the rungs of the ladder and their repeats, in order."""
        return self.made(*RUNGS, under_way=under_way)

    # Time

    def replay_s(self) -> float:
        """Return the seconds of all replays and ramps, those that were made again included."""
        return self._elapsed_s(Replayed, Repeated)

    def spent_s(self) -> float:
        """Return the seconds that count against the budget. A start that only an interruption made
        necessary does not, so that a resumed run ends like one that was not interrupted."""
        return self._elapsed_s(Replayed, Repeated, Probed) + sum(self._each_start_s().values())

    def _elapsed_s(self, *kinds: type[Replayed | Repeated | Probed]) -> float:
        return float(sum(event.elapsed_s for kind in kinds for event in self.journal.of(kind)))

    # Replays

    def _replays(self, *purposes: str) -> Iterator[tuple[Replayed, Replay]]:
        for event in self.journal.of(Replayed):
            if event.purpose in purposes:
                yield event, self.journal.replay(event)

    def confirming(self, purpose: str, max_num_seqs: int) -> list[Replay]:
        """Return the replays on the confirming engine, in the order of their windows."""
        replays = self._replays(purpose)
        return [replay for event, replay in replays if event.max_num_seqs == max_num_seqs]

    def observed(self) -> list[Replay]:
        """Return the windows that were replayed, without those that arithmetic had ruled out."""
        return [replay for _, replay in self._replays(*RUNGS) if not replay.ruled_out]

    def taken(self) -> float:
        """Return the largest share of the cores that others took during a replay or ramp; of what
        was measured again the least. 0 on a GPU, whose engine needs few of them."""
        least: dict[tuple[bool, int, int], float] = {}
        for event, replay in self._replays("ramp", "ladder", "tie_break"):
            key = (event.purpose == "ramp", event.max_num_seqs, event.window)
            taken = share_taken(device_use([replay.device]))
            least[key] = min(taken, least.get(key, 1.0))
        return max(least.values(), default=0.0)

    def disturbances(self) -> Iterator[str]:
        """Yield what else than the engine and its client was at work, and when, of all that counts:
        of what was replayed again only the last."""
        for event in self.journal.of(Probed):
            yield from (f"{why} while an idle engine was timed" for why in event.flaws)
        for replay in self._last():
            cap = replay.max_num_seqs
            yield from (f"{why} while {cap} was replayed" for why in disturbances_of(replay))

    def lateness(self) -> str | None:
        """Say how late our own client was in what counts; None where it was in time."""
        flaws = (flaw for replay in self._last() for flaw in replay.flaws if flaw.startswith(OURS))
        return next(flaws, None)

    def _last(self) -> list[Replay]:
        last = {
            (event.purpose in CONFIRMING, event.max_num_seqs, event.window): replay
            for event, replay in self._replays(*RUNGS, "ramp", *CONFIRMING)
        }
        return [*last.values()]

    def segments(self, trials: Collection[int] | None = None) -> list[Segment]:
        """Return the iterations of everything but the confirming engine, on one clock; or of these
        trials, by their numbers."""
        segments, free_s = list[Segment](), 0.0
        engine, engines = 0, dict[object, int]()
        for number, event in enumerate(self.journal.events):
            if isinstance(event, EngineStart):
                # a simulated engine that an interruption made start again is the same one
                simulated = event.facts.engine == "sim"
                which = (event.purpose, event.max_num_seqs) if simulated else number
                engine = engines.setdefault(which, len(engines))
            if not isinstance(event, Replayed) or event.purpose in CONFIRMING:
                continue
            if trials is not None and event.trial not in trials:
                continue
            replay = self.journal.replay(event)
            start_s = max(free_s, replay.start_s)  # another boot's clock may stand lower
            free_s = start_s + replay.elapsed_s
            if len(replay.iterations):
                segments.append(Segment(replay.iterations, start_s, engine))
        return segments


def _check_limits(facts: EngineFacts) -> None:
    """Raise ValueError where an engine could never compute a token: its twin would never end."""
    for name in ("max_num_batched_tokens", "block_size", "max_model_len"):
        if getattr(facts, name) < 1:
            raise ValueError(f"an engine with {name} {getattr(facts, name)}")


# Rungs


def measured(rungs: Sequence[MadeTrial], slo: Slo) -> dict[int, Measurement]:
    """Return cap → its replays pooled: of each window the uncut ones without a disturbance, or else
    the uncut ones, or else all."""
    return {cap: measure(replays, slo) for cap, replays in _that_count(rungs).items()}


def cut_under_another(rungs: Sequence[MadeTrial], slo: Slo) -> set[int]:
    """Return the caps of which a window was cut because of another SLO: what that cost them under
    this one was not measured."""
    return {
        cap
        for cap, replays in _that_count(rungs).items()
        if any(replay.is_cut_under_another(slo) for replay in replays)
    }


def _that_count(rungs: Sequence[MadeTrial]) -> dict[int, list[Replay]]:
    of_window: dict[tuple[int, int], list[Replay]] = defaultdict(list)
    for rung in rungs:
        for number, replay in rung.replays.items():
            of_window[rung.begun.max_num_seqs, number].append(replay)
    of_cap: dict[int, list[Replay]] = defaultdict(list)
    for (cap, _), replays in sorted(of_window.items(), key=lambda each: each[0]):
        uncut = [replay for replay in replays if not replay.cut]
        calm = [replay for replay in uncut if not is_disturbed(replay)]
        of_cap[cap] += calm or uncut or replays
    return of_cap


def uncut_windows(rungs: Sequence[MadeTrial]) -> list[tuple[int, Replay]]:
    """Return (number of its window, replay) of all that was not cut."""
    every = (each for rung in rungs for each in rung.replays.items())
    return [(number, replay) for number, replay in every if replay.cut is None]


def best_attainments(rungs: Sequence[MadeTrial], slo: Slo) -> dict[int, float]:
    """Return number of a window → the most that a rung attained in it."""
    best: dict[int, float] = {}
    for number, replay in uncut_windows(rungs):
        best[number] = max(measure([replay], slo).attainment, best.get(number, 0.0))
    return best


def disturbed(rungs: Sequence[MadeTrial]) -> set[int]:
    """Return the caps of which a window had something else at work when it was replayed last."""
    last = {rung.begun.max_num_seqs: rung.replays.values() for rung in rungs}
    return {cap for cap, replays in last.items() if any(map(is_disturbed, replays))}


def is_disturbed(replay: Replay) -> bool:
    return any(disturbances_of(replay))


def disturbances_of(replay: Replay) -> Iterator[str]:
    """Yield what besides the engine and our own client was at work during a replay."""
    yield from (flaw for flaw in replay.flaws if not flaw.startswith(OURS))
    if (flaw := disturbance(device_use([replay.device]))) is not None:
        yield flaw


def uncut_rung_s(rungs: Sequence[MadeTrial]) -> float | None:
    """Return how long a rung takes that is not cut short; None before there was one."""
    uncut = (rung.replays.values() for rung in rungs if rung.cut is None)
    return max((sum(each.elapsed_s for each in replays) for replays in uncut), default=None)
