"""The evidence of a run so far: its events, read as measurements."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from tuner.engines.arguments import WHICH_DEVICE
from tuner.engines.devices import BY_LOG, PER_CARD
from tuner.engines.seam import EngineFacts
from tuner.errors import RunError
from tuner.replay.device_use import device_use, share_taken
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
from tuner.runs.rungs import RUNGS, Rung, disturbances_of
from tuner.traffic.slo import Unloaded, fit_unloaded
from tuner.twin.front_end import Passages, probed_passages
from tuner.twin.law import Segment
from tuner.twin.windows import Trial

CONFIRMING = ("confirm", "headroom")
"""Purposes of replays that are no part of the curve."""


@dataclass(frozen=True, slots=True)
class MadeTrial:
    """A trial as far as it was made: what was begun, what was replayed of it, and how it ended."""

    begun: TrialBegun
    replays: Mapping[int, Replay]
    """Number of a window → its replay."""

    ended: TrialEnded | None

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


@dataclass(frozen=True, slots=True)
class Evidence:
    """A journal, read as measurements: as it stands when it is asked.

    It tells of the engines that were started, then of idle ones and what stands before them, then
    of what was asked for and how far it came, then of replays.
    """

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

    def starts(self) -> list[EngineStart]:
        return list(self.journal.of(EngineStart))

    def facts(self) -> EngineFacts:
        """Return what the newest engine said of itself."""
        return self.starts()[-1].facts

    def starts_s(self) -> tuple[float, ...]:
        return tuple(start.facts.start_s for start in self.starts())

    def engines(self) -> list[int]:
        """Return the sizes of the engines that were started, in order; one that was started again
        because its run was interrupted counts once."""
        return [size for _, size in self._each_start_s()]

    def check_machine(self, facts: EngineFacts) -> None:
        """Raise RunError when an engine is not of the machine, versions and environment of this
        run's others."""
        for start in self.starts():
            for what in ("device", "versions", "environment"):
                then, now = getattr(start.facts, what), getattr(facts, what)
                if then is None or now is None:
                    continue  # a simulated engine
                untold = BY_LOG & (then.keys() ^ now.keys())
                for key in sorted((then.keys() | now.keys()) - PER_CARD - WHICH_DEVICE - untold):
                    was, is_ = then.get(key), now.get(key)
                    if json.loads(json.dumps(is_)) != was:
                        raise RunError(
                            f"{self.journal.run_dir}: was measured with {what} {key}={was}, "
                            f"here it is {is_}",
                            hint="Numbers of two machines make no curve: start another --run-dir.",
                        )

    def unloaded(self, purpose: str = "ladder") -> Unloaded | None:
        """Return what an idle engine of this purpose does, None before it was probed."""
        for probed in self._probes(purpose):
            return fit_unloaded(
                [one.input_length for one in probed.results],
                [one.ttft_s for one in probed.results],
                [one.tpot_s for one in probed.results if one.tpot_s is not None],
            )
        return None

    def probed(self) -> list[Passages]:
        """Return the ways of the probes through the front end of the server that confirms; none
        where that was no server of ours."""
        if all(start.facts.engine != "serve" for start in self.starts()):
            return []
        return [probed_passages(probed.results) for probed in self._probes("confirm")]

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

    def made(self, *purposes: str) -> list[MadeTrial]:
        """Return every trial that has ended, or those of these purposes that did not fail."""
        replays: dict[int, dict[int, Replay]] = defaultdict(dict)
        for event in self.journal.of(Replayed):
            if event.purpose not in CONFIRMING:
                replays[event.trial][event.window] = self.journal.replay(event)
        made = [
            MadeTrial(begun, replays[number], ended)
            for number, (begun, ended) in enumerate(
                zip(self.begun(), self.journal.of(TrialEnded), strict=False)
            )
        ]
        if not purposes:
            return made
        return [each for each in made if each.begun.purpose in purposes and each.failed is None]

    def trials(self) -> list[Trial]:
        """Return what has been measured whole, in order."""
        return [_trial(one) for one in self.begun()[: self.count()]]

    def under_way(self) -> TrialBegun | None:
        """Return the trial that was begun and not ended: this run's or an interrupted one's."""
        return next(iter(self.begun()[self.count() :]), None)

    def replay_s(self) -> float:
        """Return the seconds of all replays and ramps, those that were made again included."""
        return self._elapsed_s(Replayed, Repeated)

    def spent_s(self) -> float:
        """Return the seconds that count against the budget. A start that only an interruption made
        necessary does not, so that a resumed run ends like one that was not interrupted."""
        return self._elapsed_s(Replayed, Repeated, Probed) + sum(self._each_start_s().values())

    def _elapsed_s(self, *kinds: type[Replayed | Repeated | Probed]) -> float:
        return float(sum(event.elapsed_s for kind in kinds for event in self.journal.of(kind)))

    def replayed(self) -> dict[int, Replay]:
        """Return number of window → its replay, of the trial under way."""
        number = self.count()
        return {
            event.window: self.journal.replay(event)
            for event in self.journal.of(Replayed)
            if event.purpose not in CONFIRMING and event.trial == number
        }

    def rungs(self, *, under_way: bool = False) -> list[Rung]:
        """Return the rungs of the ladder and their repeats, in order: those that were measured
        whole, or ``under_way`` too."""
        replays: dict[int, dict[int, Replay]] = defaultdict(dict)
        for event in self._replays(RUNGS):
            replays[event.trial][event.window] = self.journal.replay(event)
        begun = self.begun()
        return [
            Rung(_trial(trial), replays[number])
            for number, trial in enumerate(begun if under_way else begun[: self.count()])
            if trial.purpose in RUNGS
        ]

    def confirming(self, purpose: str, max_num_seqs: int) -> list[Replay]:
        """Return the replays on the confirming engine, in the order of their windows."""
        return [
            self.journal.replay(event)
            for event in self._replays([purpose])
            if event.max_num_seqs == max_num_seqs
        ]

    def observed(self, *, confirming: bool = False) -> list[Replay]:
        """Return the windows that were replayed, without those that arithmetic had ruled out; with
        ``confirming`` only those of the confirming engine."""
        replays = map(self.journal.replay, self._replays(["confirm"] if confirming else RUNGS))
        return [replay for replay in replays if not replay.ruled_out]

    def taken(self) -> float:
        """Return the largest share of the cores that others took during a replay or ramp; of what
        was measured again the least. 0 on a GPU, whose engine needs few of them."""
        least: dict[tuple[str, int, int], float] = {}
        for event in self._replays(("ramp", "ladder", "tie_break")):
            step = "ramp" if event.purpose == "ramp" else "rung"
            key = (step, event.max_num_seqs, event.window)
            taken = share_taken(device_use([self.journal.replay(event).device]))
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

    def _last(self) -> Iterator[Replay]:
        last = {
            (event.purpose in CONFIRMING, event.max_num_seqs, event.window): event
            for event in self._replays((*RUNGS, "ramp", *CONFIRMING))
        }
        return map(self.journal.replay, last.values())

    def segments(self) -> list[Segment]:
        """Return the iterations of everything but the confirming engine, on one clock."""
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
            replay = self.journal.replay(event)
            start_s = max(free_s, replay.start_s)  # another boot's clock may stand lower
            free_s = start_s + replay.elapsed_s
            if len(replay.iterations):
                segments.append(Segment(replay.iterations, start_s, engine))
        return segments

    def _each_start_s(self) -> dict[tuple[str, int], float]:
        """Return (purpose, size) of each engine → what its newest start took."""
        return {(one.purpose, one.max_num_seqs): one.facts.start_s for one in self.starts()}

    def _probes(self, purpose: str) -> list[Probed]:
        return [event for event in self.journal.of(Probed) if event.purpose == purpose]

    def _replays(self, purposes: Collection[str]) -> Iterator[Replayed]:
        return (event for event in self.journal.of(Replayed) if event.purpose in purposes)


def _trial(begun: TrialBegun) -> Trial:
    return Trial(begun.max_num_seqs, begun.purpose)  # type: ignore[arg-type]


def _check_limits(facts: EngineFacts) -> None:
    """Raise ValueError where an engine could never compute a token: its twin would never end."""
    for name in ("max_num_batched_tokens", "block_size", "max_model_len"):
        if getattr(facts, name) < 1:
            raise ValueError(f"an engine with {name} {getattr(facts, name)}")
