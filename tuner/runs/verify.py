"""The run of ``tuner verify``: a fresh engine, one step of replay, then a gate for each promise.

The promise is what the twin in the profile predicts for the very windows that are replayed, because
the trace may be another than the one that was tuned for, and the windows are only a part of it. A
limit is the end of its 95 % interval, with a tolerance for changes of the machine's speed on top.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.provenance import environment_differs
from tuner.engines.seam import Starter
from tuner.profile.evidence import StoredTwin
from tuner.profile.profile import ServingProfile
from tuner.replay.numbers import Measurement, Spread
from tuner.replay.numbers import measure as numbers_of
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.replay.soundness import Read, crowded
from tuner.runs.bench import Bench, Build, Trial, Watcher, execute, fitting, measure
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Journal, Tried
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import ATTAINMENT_TOLERANCE, LOADED, SLACK_S
from tuner.traffic.requirements import KV, TIMES, Requirement
from tuner.traffic.slo import Slo
from tuner.traffic.window import choose_part, in_window, sample_window
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

    @property
    def cap(self) -> int:
        return self.profile.decision.max_num_seqs

    @property
    def slo(self) -> Slo:
        return self.profile.decision.slo.slo

    def why_not(self, requirement: Requirement) -> str | None:
        """Say why a requirement is not compared with this replay; None where it is."""
        if requirement.at_headroom:
            return "the recorded load is replayed"
        if self.url and requirement.name in ENGINES_OWN:
            return "a server that runs does not tell it of a replay"
        return None

    def trial(self, requests: Sequence[TraceRequest], build: Build) -> Trial:
        """Return the window of these requests that is replayed."""
        law, part = self.twin.law, choose_part(requests, "all", length_s=self.step_s)
        token_s = float(law.decode_s[min(self.cap, len(law.decode_s) - 1)])
        drain_s = LOADED * token_s * float(np.percentile([r.output_length for r in requests], 95))
        window = sample_window(requests, part, step_s=self.step_s, drain_s=drain_s)
        return Trial(
            Tried(purpose="verify", max_num_seqs=self.cap, window=window),
            build,
            in_window(requests, window),
            CutRule(self.slo, floor=0.0),
        )


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome of a verification."""

    gates: Sequence[Gate]
    engine_s: float
    """Of starts and replays."""

    p95_ms: Mapping[str, float]
    """What clients saw, by name: TTFT, TPOT, E2EL."""

    taken: str | None
    """How much of the cores others took meanwhile, where that was so much that a promise which
    looks broken may be kept."""


def verify(  # noqa: PLR0913, PLR0917 - what is compared with what, and who watches
    requests: Sequence[TraceRequest],
    starter: Starter,
    question: Verification,
    journal: Journal,
    watcher: Watcher,
    read: Read | None,
) -> Verified:
    """Start the engine, replay what the journal does not hold yet, and return the gates.

    A broken promise is measured once more, and both replays count, unless ``question`` forbids.
    Raises EngineError; TraceError when nothing can be replayed.
    """
    evidence = Evidence(journal)
    bench = Bench(journal, watcher, read, block_size=question.trace_block_size)
    title = f"asking {question.url}" if question.url else "starting the engine"
    build = Build("verify", question.cap, starter, title=title)

    async def work() -> Trial:
        try:
            facts = (await bench.up(build)).facts
            for each in question.requirements:
                if (why := question.why_not(each)) is not None:
                    watcher.stage(f"not checked: {each}: {why}")
            was = question.profile.provenance.environment
            differs = environment_differs(was, facts.environment)
            kept, left_out = fitting(requests, facts.max_model_len)
            cautions = [] if differs is None else [f"the profile was {differs}"]
            for text in (*facts.cautions, *cautions, *left_out):
                watcher.warn(text)
            trial = question.trial(kept, build)
            await measure(lambda: next_trial(bench, question, trial), bench)
        finally:
            await bench.stop()
        return trial

    trial = execute(work(), starter, journal)
    replays = evidence.replays("verify")
    seen = numbers_of(replays, question.slo)
    times = {"ttft": seen.ttft_s, "tpot": seen.tpot_s, "e2el": seen.e2el_s}
    return Verified(
        gates=gates(replays, trial, question),
        engine_s=evidence.spent_s(),
        p95_ms={name: 1e3 * spread.p95 for name, spread in times.items() if spread is not None},
        taken=crowded([replay.device for replay in replays]),
    )


def next_trial(bench: Bench, question: Verification, trial: Trial) -> Trial | None:
    """Return the window, and once more where a promise looks broken."""
    replays = bench.evidence.replays("verify")
    if not replays:
        return trial
    if len(replays) > question.repeats or all(g.kept for g in gates(replays, trial, question)):
        return None
    bench.watcher.stage("a promise looks broken: measuring once more")
    return trial


def gates(replays: Sequence[Replay], trial: Trial, question: Verification) -> list[Gate]:
    """Return every gate; the trial was replayed once or twice."""
    measured, repeats = numbers_of(replays, question.slo), len(replays)
    required = [*_required(question, measured, repeats)]
    # a server that runs does not report its preemptions of a replay
    named = {gate.name for gate in required} | ({"preemptions"} if question.url else set())
    promised = _promised(question, trial, measured, repeats)
    return [*required, *(gate for gate in promised if gate.name not in named)]


def _promised(
    question: Verification, trial: Trial, measured: Measurement, repeats: int
) -> Iterator[Gate]:
    """Yield a gate for each number that the twin predicts of this window."""
    twin, cap, window = question.twin, question.cap, trial.tried.window
    assert window is not None
    traffic = traffic_of(trial.requests, twin.shape, hash_block_size=question.trace_block_size)
    predicted = ask(
        draws_of(twin.laws, twin.machine, traffic), Loads(traffic), (cap,), twin.shape,
        question.slo, counted_from_s=window.start_s,
    )  # fmt: skip
    low = predicted.intervals(cap)["attainment"][0]
    share, floor = measured.attainment_bound, max(0.0, low - ATTAINMENT_TOLERANCE)
    points = f"its 95 % bound less {100 * ATTAINMENT_TOLERANCE:g} points"
    middle = predicted.middle("attainment", cap)
    yield Gate("attainment", share, middle, floor, share >= floor, points)
    seen = {"preemptions": (measured.preemptions / repeats, 0.0)}
    for name, slack_s in SLACK_S.items():
        spread: Spread | None = getattr(measured, f"{name}_s")
        if spread is not None:
            seen[f"{name}_p95_s"] = spread.p95, slack_s
    bound = f"its 95 % bound plus {100 * question.tolerance:g} %"
    for name, (value, slack) in seen.items():
        if (ends := predicted.ends(name, cap)) is not None:
            limit, scale = ends[1] * (1 + question.tolerance) + slack, scale_of(name)
            middle, is_kept = predicted.middle(name, cap), value <= limit
            yield Gate(in_ms(name), scale * value, scale * middle, scale * limit, is_kept, bound)


def _required(question: Verification, measured: Measurement, repeats: int) -> Iterator[Gate]:
    """Yield a gate for each requirement of the recorded load that the engine's clients, or the
    engine itself, can show."""
    for each in question.requirements:
        value = None if question.why_not(each) else each.value_in(measured)
        if value is not None:
            value /= repeats if each.name == "preemptions" else 1
            scale, unit = (1e3, "_ms") if each.name in TIMES else (1.0, "")
            name = f"{each.name}_{each.statistic}{unit}" if each.statistic else each.name + unit
            limit, is_met = each.limit * scale, each.is_met_by(value)
            words = f"required: {each}"
            yield Gate(name, value * scale, limit, limit, is_met, words, is_promise=False)
