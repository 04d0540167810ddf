"""The evidence of a run so far, read from its journal. ``Recorder`` writes it."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tuner.engines.devices import BY_LOG, PER_CARD
from tuner.engines.seam import WHICH_DEVICE, EngineFacts
from tuner.errors import RunError
from tuner.replay.device_use import crowded, device_use, disturbance
from tuner.replay.measure import Measurement, measure
from tuner.replay.records import ProbeResult, Replay
from tuner.runs.journal import NO_SENSE, Event, Journal
from tuner.traffic.slo import Slo, Unloaded, fit_unloaded
from tuner.traffic.window import Part, Window
from tuner.twin.check import Observed, observed
from tuner.twin.front_end import Passages, passages_of, probed_passages
from tuner.twin.law import Segment
from tuner.twin.uncertainty import Block, Purpose, Trial

CONFIRMING = ("confirm", "headroom")
"""Purposes of replays that are no part of the curve."""

RUNGS: tuple[Purpose, ...] = ("ladder", "repeat", "drift_replay", "tie_break")
"""Purposes of trials whose windows were replayed whole, or cut because they had lost."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of the trace selected to be replayed, as the journal keeps it."""

    part: Part
    windows: tuple[Window, ...]
    step_s: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """A journal, read as measurements: as it stands when it is asked."""

    journal: Journal

    def check(self, *more: Callable[[], object]) -> None:
        """Read all that stands in the journal once, with ``more`` that reads it. Raises RunError
        when it makes no sense."""
        try:
            for each in more:
                each()
            self.unloaded(), self.selection(), self.starts_s(), self.replay_s(), self.spent_s()
            self.under_way()
            for event in self.journal.of("start"):
                _check_limits(EngineFacts(**event["facts"]))
        except NO_SENSE as error:
            raise RunError(
                f"{self.journal.run_dir}/journal.jsonl: an event makes no sense "
                f"({repr(error)[:200]})",
                hint="Start again in another --run-dir.",
            ) from error

    def check_machine(self, facts: EngineFacts) -> None:
        """Raise RunError when an engine is not of the machine, versions and environment of this
        run's others."""
        for event in self.journal.of("start"):
            before = event["facts"]
            for what, now in (
                ("device", facts.device),
                ("versions", facts.versions),
                ("environment", facts.environment),
            ):
                if (then := before.get(what)) is None or now is None:
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

    def facts(self) -> EngineFacts:
        """Return what the newest engine said of itself."""
        return EngineFacts(**list(self.journal.of("start"))[-1]["facts"])

    def environment(self) -> Mapping[str, str] | None:
        """Return the variables of the first engine that told any."""
        told = (one["facts"].get("environment") for one in self.journal.of("start"))
        return next((one for one in told if one is not None), None)

    def ladder_engine(self) -> str:
        """Return what kind the first engine was."""
        return str(next(iter(self.journal.of("start")))["facts"]["engine"])

    def read_apart(self) -> list[str]:
        """Return the warning that replays saw engines of two kinds, because one was read too late
        in between.

        The engine that confirms is left out: it may be behind a server in any case.
        """
        starts = (one for one in self.journal.of("start") if one["purpose"] != "confirm")
        if not {one["facts"]["engine"] for one in starts} >= {"vllm", "serve"}:
            return []
        said = (
            "outputs were read too late in tuner's own process: what was measured before is "
            "without a server's front end, and what was measured after with one"
        )
        return [said]

    def kv_blocks(self) -> dict[str, int]:
        """Return the KV blocks of the newest engine of each purpose: the pool of a small engine
        may be another than the ladder's."""
        return {
            str(one["purpose"]): int(one["facts"]["kv_blocks"]) for one in self.journal.of("start")
        }

    def start_parts_s(self) -> dict[str, float]:
        """Return what all starts together took for each of their parts, where they told."""
        found: dict[str, float] = {}
        for event in self.journal.of("start"):
            for name, took_s in event["facts"].get("phases_s", {}).items():
                found[name] = found.get(name, 0.0) + took_s
        return found

    def engines(self) -> list[int]:
        """Return the sizes of the engines that were started, in order; one that was started again
        because its run was interrupted counts once."""
        starts = {(one["purpose"], one["max_num_seqs"]): None for one in self.journal.of("start")}
        return [size for _, size in starts]

    def unloaded(self, purpose: str = "ladder") -> Unloaded | None:
        """Return what an idle engine of this purpose does, None before it was probed."""
        for event in self.journal.of("probe"):
            if event.get("purpose", "ladder") != purpose:
                continue
            results = event["results"]
            return fit_unloaded(
                [one["input_length"] for one in results],
                [one["ttft_s"] for one in results],
                [one["tpot_s"] for one in results if one["tpot_s"] is not None],
            )
        return None

    def passages(self, cap: int) -> list[Passages]:
        """Return the ways of requests through the front end of the server that confirms this cap:
        its probes, and the replays at today's load."""
        replays = self.confirming("confirm", cap)
        return [*self.probed(), *(passages_of(one.records, one.iterations) for one in replays)]

    def probed(self) -> list[Passages]:
        """Return the ways of the probes through the front end of the server that confirms; none
        where that was no server of ours."""
        if all(event["facts"]["engine"] != "serve" for event in self.journal.of("start")):
            return []
        return [
            probed_passages([_probe(one) for one in event["results"]])
            for event in self.journal.of("probe")
            if event.get("purpose") == "confirm"
        ]

    def user_unloaded(self) -> Unloaded | None:
        """Return what an idle engine does as its users see it: behind the server that confirms,
        where there is one."""
        return self.unloaded("confirm") or self.unloaded()

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

    def replayed(self) -> dict[int, Replay]:
        """Return number of window → its replay, of the trial under way."""
        number = len(self.trials())
        return {
            event["window"]: self.journal.replay(event)
            for event in self._replays()
            if event["trial"] == number
        }

    def blocks(self, slo: Slo) -> list[Block]:
        """Return the rungs of the ladder and their repeats as measured, in order."""
        return [Block(trial, measure(replays, slo)) for trial, replays in self.rungs()]

    def measured(self, slo: Slo) -> dict[int, Measurement]:
        """Return cap → its replays pooled: of each window the whole ones, or else the cut ones."""
        return {cap: measure(replays, slo) for cap, replays in self._that_count().items()}

    def cut_under_another(self, slo: Slo) -> set[int]:
        """Return the caps of which a window was cut because of another SLO: what that cost them
        under this one was not measured."""
        return {
            cap
            for cap, replays in self._that_count().items()
            if any(one.is_cut_under_another(slo) for one in replays)
        }

    def _that_count(self) -> dict[int, list[Replay]]:
        by_cap: dict[int, dict[int, list[Replay]]] = {}
        for trial, events in self._rung_events():
            for event in events:
                of_cap = by_cap.setdefault(trial.max_num_seqs, {})
                of_cap.setdefault(event["window"], []).append(self.journal.replay(event))
        return {
            cap: [
                one
                for replays in windows.values()
                for one in ([whole for whole in replays if not whole.cut] or replays)
            ]
            for cap, windows in sorted(by_cap.items())
        }

    def disturbed(self) -> dict[int, str]:
        """Return cap → what else was at work while its windows were replayed last."""
        found: dict[int, str] = {}
        for trial, replays in self.rungs():
            found.pop(trial.max_num_seqs, None)
            logs = [one.device for one in replays]
            if logs and (why := disturbance(device_use(logs))):
                found[trial.max_num_seqs] = why
        return found

    def crowded(self) -> str | None:
        """Say how much of the cores was others' while windows were replayed, on the ladder's engine
        or the one that confirms; None where enough was left."""
        for purposes in (RUNGS, CONFIRMING):
            events = (one for one in self.journal.of("replay") if one["purpose"] in purposes)
            logs = [self.journal.replay(event).device for event in events]
            if logs and (why := crowded(device_use(logs))):
                return why
        return None

    def rung_s(self) -> float | None:
        """Return how long a rung takes that is not cut short; None before there was one."""
        whole = (replays for _, replays in self.rungs() if not any(one.cut for one in replays))
        return max((sum(one.elapsed_s for one in replays) for replays in whole), default=None)

    def rungs(self) -> list[tuple[Trial, list[Replay]]]:
        """Return the trials that replayed windows whole, or until they had lost, in order."""
        return [
            (trial, [self.journal.replay(event) for event in events])
            for trial, events in self._rung_events()
        ]

    def whole_windows(self) -> Iterator[tuple[int, Replay]]:
        """Yield (number of its window, replay) of every rung that was not cut."""
        for event in self._replays():
            if event["purpose"] in RUNGS and (replay := self.journal.replay(event)).cut is None:
                yield event["window"], replay

    def best_attainments(self, slo: Slo) -> dict[int, float]:
        """Return number of a window → the most that a rung attained in it."""
        best: dict[int, float] = {}
        for number, replay in self.whole_windows():
            attained = measure([replay], slo).attainment
            best[number] = max(attained, best.get(number, 0.0))
        return best

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

    def observed(self, *, confirming: bool = False) -> list[Observed]:
        """Return the windows that were replayed, without those that arithmetic had ruled out; with
        ``confirming`` only those of the confirming engine."""
        purposes = ("confirm",) if confirming else RUNGS
        events = (one for one in self.journal.of("replay") if one["purpose"] in purposes)
        replays = map(self.journal.replay, events)
        return [observed(one) for one in replays if not one.ruled_out]

    def confirming(self, purpose: str, max_num_seqs: int) -> list[Replay]:
        """Return the replays on the confirming engine, in the order of their windows."""
        return [
            self.journal.replay(event)
            for event in self.journal.of("replay")
            if (event["purpose"], event["max_num_seqs"]) == (purpose, max_num_seqs)
        ]

    def starts_s(self) -> tuple[float, ...]:
        return tuple(event["facts"]["start_s"] for event in self.journal.of("start"))

    def replay_s(self) -> float:
        return float(sum(one["elapsed_s"] for one in self.journal.events if "elapsed_s" in one))

    def spent_s(self) -> float:
        """Return the seconds that count against the budget. A start that only an interruption made
        necessary does not, so that a resumed run ends like one that was not interrupted."""
        starts: dict[tuple[str, int], float] = {
            (one["purpose"], one["max_num_seqs"]): one["facts"]["start_s"]
            for one in self.journal.of("start")
        }
        return self.replay_s() + sum(starts.values())

    def _rung_events(self) -> Iterator[tuple[Trial, list[Event]]]:
        of_trial: dict[int, list[Event]] = {}
        for event in self._replays():
            of_trial.setdefault(event["trial"], []).append(event)
        for number, trial in enumerate(self.trials()):
            if trial.purpose in RUNGS:
                yield trial, of_trial.get(number, [])

    def _begun(self) -> list[Trial]:
        return [Trial(one["max_num_seqs"], one["purpose"]) for one in self.journal.of("trial")]

    def _replays(self) -> Iterator[Event]:
        """Yield the replays and ramps of trials, the confirming engine's left out."""
        return (one for one in self.journal.of("replay") if one["purpose"] not in CONFIRMING)


def _probe(one: Event) -> ProbeResult:
    passage_s = tuple(one.get("passage_s", ()))
    return ProbeResult(**{**one, "passage_s": passage_s})


def _check_limits(facts: EngineFacts) -> None:
    """Raise ValueError where an engine could never compute a token: its twin would never end."""
    for name in ("max_num_batched_tokens", "block_size", "max_model_len"):
        if getattr(facts, name) < 1:
            raise ValueError(f"an engine with {name} {getattr(facts, name)}")
