"""The run of ``tuner verify``: a fresh engine, one step of replay, then a gate for each promise.

The promise is what the twin in the profile predicts for the very window that is replayed, because
the trace may be another than the one that was tuned for, and the window is only a part of it. A
limit is the end of its 95 % interval, with a tolerance for changes of the machine's speed on top.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tuner.engines.provenance import environment_differs
from tuner.engines.seam import Starter
from tuner.profile.evidence import StoredTwin
from tuner.profile.profile import ServingProfile
from tuner.replay.numbers import Measurement
from tuner.replay.numbers import measure as numbers_of
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.replay.soundness import crowded
from tuner.runs.bench import Bench, Build, Trial, execute, fitting, measure
from tuner.runs.journal import Tried
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import ATTAINMENT_TOLERANCE, SLACK_S
from tuner.traffic.requirements import KV, TIMES, Requirement
from tuner.traffic.slo import Unloaded
from tuner.traffic.window import in_window
from tuner.traffic.workload import choose_windows
from tuner.twin.samples import Loads, ask, draws_of, in_ms, scale_of
from tuner.twin.simulation import traffic_of

ENGINES_OWN = ("queue", "preemptions", KV)
"""Numbers that only the engine knows, and not its clients."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One promise, and whether it was kept. Times in milliseconds, shares from 0 to 1."""

    name: str
    measured: float
    promised: float
    limit: float
    """The worst that still counts as kept: a lower bound of the attainment, else an upper one."""

    kept: bool
    limit_is: str
    """Where the limit is from, in words."""

    is_promise: bool = True
    """Whether the limit is what the profile promises; otherwise it is what was required."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What is verified, and how."""

    profile: ServingProfile
    twin: StoredTwin
    trace_block_size: int
    step_s: float
    tolerance: float

    url: str = ""
    """Of a server that runs already; empty: an engine is started."""

    repeats: bool = True
    """Whether a broken promise is measured once more."""

    requirements: tuple[Requirement, ...] = ()
    """Compared with these, and not with the promise as well."""

    def why_not(self, requirement: Requirement) -> str | None:
        """Say why a requirement is not compared with this replay; None where it is."""
        if requirement.at_headroom:
            return "the recorded load is replayed"
        if self.url and requirement.name in ENGINES_OWN:
            return "a server that runs does not tell it of a replay"
        return None

    def trial(self, requests: Sequence[TraceRequest], starter: Starter) -> Trial:
        """Return the window of these requests that is replayed."""
        decision, decode_s = self.profile.decision, self.twin.law.decode_s
        cap = decision.max_num_seqs
        alone = Unloaded(0.0, 0.0, float(decode_s[min(cap, len(decode_s) - 1)]))
        _, window = choose_windows(requests, alone, window="all", step_s=self.step_s)
        title = f"asking {self.url}" if self.url else "starting the engine"
        build = Build("verify", cap, starter, title=title)
        sent, rule = in_window(requests, window), CutRule(decision.slo.slo, floor=0.0)
        return Trial(Tried("verify", cap, window=window), build, sent, rule)


class Verified(NamedTuple):
    """The outcome of a verification."""

    gates: Sequence[Gate]
    engine_s: float
    """Of starts and replays."""

    taken: str | None
    """How much of the cores others took meanwhile, where that was so much that a promise which
    looks broken may be kept."""


def verify(
    requests: Sequence[TraceRequest], starter: Starter, question: Verification, bench: Bench
) -> Verified:
    """Start the engine, replay what the journal does not hold yet, and return the gates.

    A broken promise is measured once more, and both replays count, unless ``question`` forbids.
    Raises EngineError; TraceError when nothing can be replayed.
    """
    journal, watcher = bench.journal, bench.watcher

    async def work() -> Trial:
        trial = question.trial(requests, starter)
        try:
            facts = (await bench.up(trial.build)).facts
            for each in question.requirements:
                if (why := question.why_not(each)) is not None:
                    watcher.stage(f"not checked: {each}: {why}")
            was = question.profile.provenance.environment
            if (differs := environment_differs(was, facts.environment)) is not None:
                watcher.warn(f"the profile was {differs}")
            kept, left_out = fitting(requests, facts.max_model_len)
            for text in (*facts.cautions, *left_out):
                watcher.warn(text)
            trial = question.trial(kept, starter)
            await measure(lambda: next_trial(bench, question, trial), bench)
        finally:
            await bench.stop()
        return trial

    trial = execute(work(), starter, journal)
    replays = journal.replays("verify")
    taken = crowded([replay.device for replay in replays])
    return Verified(gates(replays, trial, question), journal.spent_s(), taken)


def next_trial(bench: Bench, question: Verification, trial: Trial) -> Trial | None:
    """Return the window, and once more where a promise looks broken."""
    replays = bench.journal.replays("verify")
    if not replays:
        return trial
    if len(replays) > question.repeats or all(g.kept for g in gates(replays, trial, question)):
        return None
    bench.watcher.stage("a promise looks broken: measuring once more")
    return trial


def gates(replays: Sequence[Replay], trial: Trial, question: Verification) -> list[Gate]:
    """Return every gate; the trial was replayed once or twice."""
    measured = numbers_of(replays, question.profile.decision.slo.slo)
    required = [*_required(question, measured, len(replays))]
    # a server that runs does not report its preemptions of a replay
    named = {gate.name for gate in required} | ({"preemptions"} if question.url else set())
    promised = _promised(question, trial, measured, len(replays))
    return [*required, *(gate for gate in promised if gate.name not in named)]


def _promised(
    question: Verification, trial: Trial, measured: Measurement, repeats: int
) -> Iterator[Gate]:
    """Yield a gate for each number that the twin predicts of this window."""
    twin, cap, window = question.twin, trial.tried.max_num_seqs, trial.tried.window
    assert window is not None
    traffic = traffic_of(trial.requests, twin.shape, hash_block_size=question.trace_block_size)
    predicted = ask(
        draws_of(twin.laws, twin.machine, traffic), Loads(traffic), (cap,), twin.shape,
        question.profile.decision.slo.slo, counted_from_s=window.start_s,
    )  # fmt: skip
    low, _ = predicted.intervals(cap)["attainment"]
    share, floor = measured.attainment_bound, max(0.0, low - ATTAINMENT_TOLERANCE)
    points = f"95% bound - {100 * ATTAINMENT_TOLERANCE:g} points"
    middle = predicted.middle("attainment", cap)
    yield Gate("attainment", share, middle, floor, share >= floor, points)
    seen = {"preemptions": (measured.preemptions / repeats, 0.0)}
    for name, slack_s in SLACK_S.items():
        if (spread := getattr(measured, f"{name}_s")) is not None:
            seen[f"{name}_p95_s"] = spread.p95, slack_s
    bound = f"95% bound + {100 * question.tolerance:g}%"
    for name, (value, slack) in seen.items():
        if (ends := predicted.ends(name, cap)) is not None:
            limit, scale = ends[1] * (1 + question.tolerance) + slack, scale_of(name)
            middle = scale * predicted.middle(name, cap)
            yield Gate(in_ms(name), scale * value, middle, scale * limit, value <= limit, bound)


def _required(question: Verification, measured: Measurement, repeats: int) -> Iterator[Gate]:
    """Yield a gate for each requirement of the recorded load that the engine's clients, or the
    engine itself, can show."""
    for each in question.requirements:
        value = None if question.why_not(each) else each.value_in(measured)
        if value is not None:
            value /= repeats if each.name == "preemptions" else 1
            scale, unit = (1e3, "_ms") if each.name in TIMES else (1.0, "")
            name = "_".join(filter(None, (each.name, each.statistic))) + unit
            limit, words = each.limit * scale, f"required: {each}"
            is_met = each.is_met_by(value)
            yield Gate(name, value * scale, limit, limit, is_met, words, is_promise=False)
