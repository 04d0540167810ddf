"""The run of ``tuner verify``: a fresh engine, one step of replay, then a gate for each promise.

The promise is what the twin in the profile predicts for the very windows that are replayed, because
the trace may be another than the one that was tuned for, and the windows are only a part of it. A
limit is the end of its 95 % interval, with a tolerance for changes of the machine's speed on top.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.provenance import environment_differs
from tuner.engines.seam import Starter
from tuner.profile.evidence import StoredTwin
from tuner.replay.device_use import crowded, device_use
from tuner.replay.numbers import Measurement, Spread
from tuner.replay.numbers import measure as numbers_of
from tuner.replay.readings import Read
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.runs.bench import Bench, Build, Watcher
from tuner.runs.events import Replayed
from tuner.runs.evidence import Evidence
from tuner.runs.execute import execute
from tuner.runs.journal import Journal
from tuner.runs.measure import Trial, measure
from tuner.runs.sweep.confirmation import planned_window
from tuner.runs.sweep.sweep_warnings import left_out
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import ATTAINMENT_TOLERANCE, LOADED, SLACK_S
from tuner.traffic.requirements import KV, TIMES, Requirement
from tuner.traffic.sampling import choose_part, in_window, sample_windows
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window
from tuner.traffic.workload import keep_what_fits
from tuner.twin.check import Predicted, predict

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
    """The two sides of a verification."""

    twin: StoredTwin
    slo: Slo
    max_num_seqs: int
    hit_share: float
    trace_block_size: int
    window: str
    step_s: float
    tolerance: float

    url: str = ""
    """Of a server that runs already; empty: an engine is started."""

    repeats: bool = True
    """Whether a broken promise is measured once more."""

    requirements: tuple[Requirement, ...] = ()
    """Compared with these, and not with the promise as well."""

    environment: Mapping[str, str] | None = None
    """That the profile was measured in; None where that is not known."""

    def why_not(self, requirement: Requirement) -> str | None:
        """Say why a requirement is not compared with this replay; None where it is."""
        if requirement.at_headroom:
            return "the recorded load is replayed"
        if self.url and requirement.name in ENGINES_OWN:
            return "a server that runs does not tell it of a replay"
        return None


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome of a verification."""

    gates: Sequence[Gate]
    engine_s: float
    """Of starts and replays."""

    p95_ms: Mapping[str, float]
    """What clients saw, by name: TTFT, TPOT, E2EL."""

    replays: Sequence[Replay]

    @property
    def taken(self) -> str | None:
        """Say how much of the cores others took meanwhile, where that was so much that a promise
        which looks broken may be kept."""
        logs = [replay.device for replay in self.replays]
        return crowded(device_use(logs)) if logs else None


Sent = Sequence[tuple[Window, Sequence[TraceRequest]]]


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

    async def work() -> Sent:
        bench = Bench(journal, watcher, read, block_size=question.trace_block_size)
        title = f"asking {question.url}" if question.url else "starting the engine"
        build = Build("verify", question.max_num_seqs, starter, title=title)
        try:
            facts = (await bench.up(build)).facts
            for each in question.requirements:
                if (why := question.why_not(each)) is not None:
                    watcher.stage(f"not checked: {each}: {why}")
            differs = environment_differs(question.environment, facts.environment)
            kept, dropped = keep_what_fits(requests, max_model_len=facts.max_model_len)
            cautions = [*facts.cautions]
            cautions += [] if differs is None else [f"the profile was {differs}"]
            warning = left_out(dropped, of=len(requests), max_model_len=facts.max_model_len)
            for text in [*cautions, *([warning] if warning else [])]:
                watcher.warn(text)
            sent = windows_of(kept, question)
            await measure(lambda: _next_trial(bench, build, question, sent), bench)
        finally:
            await bench.stop()
        return sent

    sent = execute(work(), starter, journal)
    replays = _replays(journal)
    seen = numbers_of(replays, question.slo)
    times = {"ttft": seen.ttft_s, "tpot": seen.tpot_s, "e2el": seen.e2el_s}
    return Verified(
        gates=gates(replays, sent, question),
        engine_s=Evidence(journal).spent_s(),
        p95_ms={name: 1e3 * spread.p95 for name, spread in times.items() if spread is not None},
        replays=replays,
    )


def _replays(journal: Journal) -> list[Replay]:
    return [journal.replay(event) for event in journal.of(Replayed)]


def _next_trial(bench: Bench, build: Build, question: Verification, sent: Sent) -> Trial | None:
    """Return all windows, and all of them once more where a promise looks broken."""
    done = bench.evidence.count()
    if done > question.repeats:
        return None
    if done and all(gate.kept for gate in gates(_replays(bench.journal), sent, question)):
        return None
    if done:
        bench.watcher.stage("a promise looks broken: measuring once more")
    rule, of_window = CutRule(question.slo, floor=0.0), dict(sent)
    return Trial(
        purpose="verify",
        build=build,
        cap=build.max_num_seqs,
        windows=tuple(of_window),
        sent=lambda window: of_window[window],
        rule=lambda *_: (rule, None),
        slo=question.slo,
    )


def windows_of(
    requests: Sequence[TraceRequest], question: Verification
) -> list[tuple[Window, list[TraceRequest]]]:
    """Return the windows that are replayed, each with the requests that it sends."""
    part = choose_part(requests, question.window, length_s=question.step_s)
    law = question.twin.law
    token_s = float(law.decode_s[min(question.max_num_seqs, len(law.decode_s) - 1)])
    outputs = np.percentile([each.output_length for each in requests], 95)
    windows = sample_windows(
        requests, part, step_s=question.step_s, drain_s=LOADED * token_s * float(outputs)
    )
    return [(window, in_window(requests, window)) for window in windows]


def gates(replays: Sequence[Replay], sent: Sent, question: Verification) -> list[Gate]:
    """Return every gate; ``replays`` are one or more of each window that was ``sent``."""
    measured = numbers_of(replays, question.slo)
    repeats = len(replays) // len(sent)
    required = _required(question, measured, repeats)
    twin = question.twin
    planned = [
        planned_window(
            window,
            requests,
            hash_block_size=question.trace_block_size,
            hit_share=question.hit_share,
            kv_tokens=twin.shape.kv_tokens,
        )
        for window, requests in sent
    ]
    predicted, _ = predict(
        planned, twin.laws, twin.machine, twin.shape, question.slo,
        max_num_seqs=question.max_num_seqs,
    )  # fmt: skip
    # a server that runs does not report its preemptions of a replay
    held = {gate.name for gate in required} | ({"preemptions"} if question.url else set())
    promised = _promised(predicted, measured, question.tolerance, repeats)
    return [*required, *(gate for gate in promised if gate.name not in held)]


def _promised(
    predicted: Mapping[str, Predicted], measured: Measurement, tolerance: float, repeats: int
) -> list[Gate]:
    share, seen_share = predicted["attainment"], measured.attainment_bound
    floor = max(0.0, share.low - ATTAINMENT_TOLERANCE)
    points = f"its 95 % bound less {100 * ATTAINMENT_TOLERANCE:g} points"
    promised = [Gate("attainment", seen_share, share.middle, floor, seen_share >= floor, points)]
    seen = {"preemptions": (measured.preemptions / repeats, 0.0)}
    for name, slack_s in SLACK_S.items():
        spread: Spread | None = getattr(measured, f"{name}_s")
        if spread is not None:
            seen[f"{name}_p95_ms"] = spread.p95 * 1e3, slack_s * 1e3
    bound = f"its 95 % bound plus {100 * tolerance:g} %"
    for name, each in predicted.items():
        if name in seen:
            value, slack = seen[name]
            limit = each.high * (1 + tolerance) + slack
            promised.append(Gate(name, value, each.middle, limit, value <= limit, bound))
    return promised


def _required(question: Verification, measured: Measurement, repeats: int) -> list[Gate]:
    """Return a gate for each requirement of the recorded load that the engine's clients, or the
    engine itself, can show."""
    required = []
    for each in question.requirements:
        value = None if question.why_not(each) else each.value_in(measured)
        if value is not None:
            value /= repeats if each.name == "preemptions" else 1
            scale, unit = (1e3, "_ms") if each.name in TIMES else (1.0, "")
            name = f"{each.name}_{each.statistic}" if each.statistic else each.name
            limit, words = each.limit * scale, f"required: {each}"
            required.append(
                Gate(
                    name + unit, value * scale, limit, limit, each.is_met_by(value), words,
                    is_promise=False,
                )
            )  # fmt: skip
    return required
