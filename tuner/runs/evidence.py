"""The evidence of a run so far, read from its journal. ``Recorder`` writes it."""

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from tuner.engines.arguments import WHICH_DEVICE
from tuner.engines.devices import BY_LOG, PER_CARD
from tuner.engines.seam import EngineFacts
from tuner.errors import RunError
from tuner.replay.device_use import device_use, share_taken
from tuner.replay.records import ProbeResult, Replay
from tuner.replay.soundness import OURS
from tuner.runs.journal import NO_SENSE, Event, Journal
from tuner.runs.rungs import RUNGS, Rung, disturbances_of
from tuner.traffic.slo import Unloaded, fit_unloaded
from tuner.traffic.window import Part, Window
from tuner.twin.check import Observed, observed
from tuner.twin.front_end import Passages, probed_passages
from tuner.twin.law import Segment
from tuner.twin.uncertainty import Trial

CONFIRMING = ("confirm", "headroom")
"""Purposes of replays that are no part of the curve."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of the trace selected to be replayed, as the journal keeps it."""

    part: Part
    windows: tuple[Window, ...]
    step_s: float


@dataclass(frozen=True, slots=True)
class EngineStart:
    """An engine that was started: for what, at which size, and what it said of itself."""

    purpose: str
    max_num_seqs: int
    facts: EngineFacts


@dataclass(frozen=True, slots=True)
class Evidence:
    """A journal, read as measurements: as it stands when it is asked.

    It tells of the engines that were started, then of idle ones and what stands before them, then
    of what was asked for and how far it came, then of replays.
    """

    journal: Journal

    def check(self, *more: Callable[[], object]) -> None:
        """Read all that stands in the journal once, with ``more`` that reads it. Raises RunError
        when it makes no sense."""
        try:
            for each in more:
                each()
            self.unloaded(), self.selection(), self.replay_s(), self.spent_s(), self.under_way()
            for start in self.starts():
                _check_limits(start.facts)
        except NO_SENSE as error:
            raise RunError(
                f"{self.journal.run_dir}/journal.jsonl: an event makes no sense "
                f"({repr(error)[:200]})",
                hint="Start again in another --run-dir.",
            ) from error

    def starts(self) -> list[EngineStart]:
        """Return every start, in order."""
        return [
            EngineStart(one["purpose"], one["max_num_seqs"], EngineFacts(**one["facts"]))
            for one in self.journal.of("start")
        ]

    def facts(self) -> EngineFacts:
        """Return what the newest engine said of itself."""
        return self.starts()[-1].facts

    def starts_s(self) -> tuple[float, ...]:
        return tuple(one.facts.start_s for one in self.starts())

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
                    continue  # an older tuner, or a simulated engine
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
        for results in self._probes(purpose):
            return fit_unloaded(
                [one.input_length for one in results],
                [one.ttft_s for one in results],
                [one.tpot_s for one in results if one.tpot_s is not None],
            )
        return None

    def probed(self) -> list[Passages]:
        """Return the ways of the probes through the front end of the server that confirms; none
        where that was no server of ours."""
        if all(one.facts.engine != "serve" for one in self.starts()):
            return []
        return [probed_passages(results) for results in self._probes("confirm")]

    def selection(self) -> Selection | None:
        """Return what this run replays, None before it was selected."""
        for event in self.journal.of("choice"):
            return Selection(
                Part(**event["part"]),
                tuple(Window(**window) for window in event["windows"]),
                event["step_s"],
            )
        return None

    def is_complete(self) -> bool:
        """Whether everything that the decision asks for was measured."""
        return any(event["complete"] for event in self.journal.of("gathered"))

    def trials(self) -> list[Trial]:
        """Return what has been measured whole, in order."""
        return self._begun()[: sum(1 for _ in self.journal.of("measured"))]

    def under_way(self) -> Trial | None:
        """Return the trial that was begun and not ended: this run's or an interrupted one's."""
        return next(iter(self._begun()[len(self.trials()) :]), None)

    def replay_s(self) -> float:
        """Return the seconds of all replays and ramps, those that were made again included."""
        return self._elapsed_s() - self._elapsed_s("probe")

    def _elapsed_s(self, event: str | None = None) -> float:
        events = self.journal.events if event is None else self.journal.of(event)
        return float(sum(one.get("elapsed_s", 0.0) for one in events))

    def spent_s(self) -> float:
        """Return the seconds that count against the budget. A start that only an interruption made
        necessary does not, so that a resumed run ends like one that was not interrupted."""
        return self._elapsed_s() + sum(self._each_start_s().values())

    def replayed(self) -> dict[int, Replay]:
        """Return number of window → its replay, of the trial under way."""
        number = len(self.trials())
        return {
            event["window"]: self.journal.replay(event)
            for event in self.journal.of("replay")
            if event["purpose"] not in CONFIRMING and event["trial"] == number
        }

    def rungs(self, *, under_way: bool = False) -> list[Rung]:
        """Return the rungs of the ladder and their repeats, in order: those that were measured
        whole, or ``under_way`` too."""
        replays: dict[int, dict[int, Replay]] = {}
        for event in self._replays(RUNGS):
            replays.setdefault(event["trial"], {})[event["window"]] = self.journal.replay(event)
        return [
            Rung(trial, replays.get(number, {}))
            for number, trial in enumerate(self._begun() if under_way else self.trials())
            if trial.purpose in RUNGS
        ]

    def confirming(self, purpose: str, max_num_seqs: int) -> list[Replay]:
        """Return the replays on the confirming engine, in the order of their windows."""
        return [
            self.journal.replay(event)
            for event in self._replays([purpose])
            if event["max_num_seqs"] == max_num_seqs
        ]

    def observed(self, *, confirming: bool = False) -> list[Observed]:
        """Return the windows that were replayed, without those that arithmetic had ruled out; with
        ``confirming`` only those of the confirming engine."""
        replays = map(self.journal.replay, self._replays(["confirm"] if confirming else RUNGS))
        return [observed(one) for one in replays if not one.ruled_out]

    def taken(self) -> float:
        """Return the largest share of the cores that others took during a replay or ramp; of what
        was measured again the least. 0 on a GPU, whose engine needs few of them."""
        least: dict[tuple[str, int, int], float] = {}
        for event in self._replays(("ramp", "ladder", "tie_break")):
            step = "ramp" if event["purpose"] == "ramp" else "rung"
            key = (step, event["max_num_seqs"], event["window"])
            taken = share_taken(device_use([self.journal.replay(event).device]))
            least[key] = min(taken, least.get(key, 1.0))
        return max(least.values(), default=0.0)

    def disturbances(self) -> Iterator[str]:
        """Yield what else than the engine and its client was at work, and when, of all that counts:
        of what was replayed again only the last."""
        for event in self.journal.of("probe"):
            yield from (f"{why} while an idle engine was timed" for why in event["flaws"])
        for replay in self._last():
            cap = replay.max_num_seqs
            yield from (f"{why} while {cap} was replayed" for why in disturbances_of(replay))

    def lateness(self) -> str | None:
        """Say how late our own client was in what counts; None where it was in time."""
        found = (one for replay in self._last() for one in replay.flaws if one.startswith(OURS))
        return next(found, None)

    def _last(self) -> Iterator[Replay]:
        last = {
            (event["purpose"] in CONFIRMING, event["max_num_seqs"], event["window"]): event
            for event in self._replays((*RUNGS, "ramp", *CONFIRMING))
        }
        return map(self.journal.replay, last.values())

    def segments(self) -> list[Segment]:
        """Return the iterations of everything but the confirming engine, on one clock."""
        found, free_s = list[Segment](), 0.0
        engine, engines = 0, dict[object, int]()
        for number, event in enumerate(self.journal.events):
            if event["event"] == "start":
                # a simulated engine that an interruption made start again is the same one
                simulated = event["facts"]["engine"] == "sim"
                which = (event["purpose"], event["max_num_seqs"]) if simulated else number
                engine = engines.setdefault(which, len(engines))
            if event["event"] != "replay" or event["purpose"] in CONFIRMING:
                continue
            replay = self.journal.replay(event)
            start_s = max(free_s, replay.start_s)  # another boot's clock may stand lower
            free_s = start_s + replay.elapsed_s
            if len(replay.iterations):
                found.append(Segment(replay.iterations, start_s, engine))
        return found

    def _each_start_s(self) -> dict[tuple[str, int], float]:
        """Return (purpose, size) of each engine → what its newest start took."""
        return {(one.purpose, one.max_num_seqs): one.facts.start_s for one in self.starts()}

    def _probes(self, purpose: str) -> list[list[ProbeResult]]:
        return [
            [_probe(one) for one in event["results"]]
            for event in self.journal.of("probe")
            if event.get("purpose", "ladder") == purpose
        ]

    def _begun(self) -> list[Trial]:
        return [Trial(one["max_num_seqs"], one["purpose"]) for one in self.journal.of("trial")]

    def _replays(self, purposes: Collection[str]) -> Iterator[Event]:
        return (one for one in self.journal.of("replay") if one["purpose"] in purposes)


def _probe(one: Event) -> ProbeResult:
    passage_s = tuple(one.get("passage_s", ()))  # none of an older tuner
    return ProbeResult(**{**one, "passage_s": passage_s})


def _check_limits(facts: EngineFacts) -> None:
    """Raise ValueError where an engine could never compute a token: its twin would never end."""
    for name in ("max_num_batched_tokens", "block_size", "max_model_len"):
        if getattr(facts, name) < 1:
            raise ValueError(f"an engine with {name} {getattr(facts, name)}")
