"""The run of ``tuner verify``: one fresh engine, one step of replay, then the gates."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tuner.engines.provenance import environment_differs
from tuner.engines.seam import Engine, EngineFacts, Starter
from tuner.profile.stored_twin import StoredTwin
from tuner.replay.device_use import crowded, device_use
from tuner.replay.measure import measure
from tuner.replay.plan import plan_requests
from tuner.replay.readings import Read
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule, Progress
from tuner.replay.soundness import replay_soundly
from tuner.runs.verify.gates import Gate, gates, least_gate, required_gates
from tuner.trace.trace import TraceRequest
from tuner.traffic.arrivals import busiest_window
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.requirements import KV, Requirement
from tuner.traffic.sampling import sample_windows
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window, choose_part, in_window
from tuner.traffic.workload import LOADED, keep_what_fits

ENGINES_OWN = ("queue", "preemptions", KV)
"""Numbers that only the engine knows, and not its clients."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The two sides of a verification."""

    twin: StoredTwin | None
    """None where the server that is asked is no vLLM."""

    slo: Slo
    max_num_seqs: int
    hit_share: float
    trace_block_size: int
    window: str
    step_s: float
    tolerance: float

    tpot_s: float = 0.0
    """Seconds that a token takes by the promise. Where there is no twin it tells how long the last
    requests of a window take."""

    place: str = ""
    """The address of a server that runs already; empty: an engine is started."""

    is_vllm: bool = True
    """The twin speaks of vLLM only; of another server its clients' numbers are gated alone."""

    repeats: bool = True
    """Whether a broken promise is measured once more."""

    requirements: tuple[Requirement, ...] = ()
    """What is held to these is not held to the promise as well."""

    environment: Mapping[str, str] | None = None
    """That the profile was measured in; None where that is not known."""

    @property
    def told(self) -> tuple[Requirement, ...]:
        """The requirements that can be held against this replay."""
        return tuple(one for one in self.requirements if self.why_not(one) is None)

    def cautions(self, facts: EngineFacts) -> list[str]:
        """Return what to beware of in whatever this engine shows."""
        differs = environment_differs(self.environment, facts.environment)
        return [*facts.cautions, *([] if differs is None else [f"the profile was {differs}"])]

    def why_not(self, one: Requirement) -> str | None:
        """Say why a requirement is not held against this replay; None where it is."""
        if one.at_headroom:
            return "the captured load is replayed"
        if self.place and one.name in ENGINES_OWN:
            return "a server that runs does not tell it of a replay"
        return None


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome of a verification."""

    gates: Sequence[Gate]
    engine_s: float
    """From the engine's start to its end."""

    p95_ms: Mapping[str, float]
    """What clients saw, by name: TTFT, TPOT, E2EL."""

    replays: Sequence[Replay]

    @property
    def taken(self) -> str | None:
        """Say how much of the cores others took meanwhile, where that was so much that a promise
        which looks broken may be kept."""
        logs = [one.device for one in self.replays]
        return crowded(device_use(logs)) if logs else None


async def verify(  # noqa: PLR0913 - what is held against what, and who is told
    requests: Sequence[TraceRequest],
    starter: Starter,
    question: Verification,
    *,
    tell: Callable[[str], None],
    read: Read | None,
    progress: Progress | None = None,
    keep: Callable[[Replay], None] = lambda _: None,
) -> Verified:
    """Start the engine, replay, and return the gates; ``keep`` is called with each replay.

    A broken promise is measured once more, and both replays count, unless ``question`` forbids.
    Raises EngineError; TraceError when nothing can be replayed.
    """
    tell(
        f"asking {question.place}"
        if question.place
        else f"starting the engine with max_num_seqs={question.max_num_seqs}"
    )
    return await _verified(requests, starter, question, _Listeners(tell, read, progress, keep))


async def _verified(
    requests: Sequence[TraceRequest],
    starter: Starter,
    question: Verification,
    listeners: "_Listeners",
) -> Verified:
    tell, now_s = listeners.tell, asyncio.get_running_loop().time
    began_s = now_s()
    engine = await starter.start(max_num_seqs=question.max_num_seqs)
    try:
        for one in question.requirements:
            if (why := question.why_not(one)) is not None:
                tell(f"not asked: {one}: {why}")
        for caution in question.cautions(engine.facts):
            tell(f"Warning: {caution}")
        kept, dropped = keep_what_fits(requests, max_model_len=engine.facts.max_model_len)
        if dropped:
            tell(f"Warning: {dropped} requests are longer than the engine takes: left out")
        windows = windows_of(kept, question)
        replays = await _step(engine, windows, question, listeners)
        found = _gates_of(replays, windows, question, repeats=1)
        if question.repeats and not all(gate.kept for gate in found):
            tell("a promise looks broken: measuring once more")
            replays += await _step(engine, windows, question, listeners)
            found = _gates_of(replays, windows, question, repeats=2)
    finally:
        await engine.stop()
    seen = measure(replays, question.slo)
    times = {"ttft": seen.ttft_s, "tpot": seen.tpot_s, "e2el": seen.e2el_s}
    p95_ms = {name: 1e3 * one.p95 for name, one in times.items() if one is not None}
    return Verified(found, now_s() - began_s, p95_ms, replays)


Windows = Sequence[tuple[Window, Sequence[TraceRequest]]]


@dataclass(frozen=True, slots=True)
class _Listeners:
    """Those who are told of a replay."""

    tell: Callable[[str], None]
    read: Read | None
    progress: Progress | None
    keep: Callable[[Replay], None]


async def _step(
    engine: Engine, windows: Windows, question: Verification, listeners: _Listeners
) -> list[Replay]:
    replays = []
    for window, sent in windows:
        replays.append(await _replayed(engine, window, sent, question, listeners))
        listeners.keep(replays[-1])
    return replays


def _gates_of(
    replays: Sequence[Replay], windows: Windows, question: Verification, *, repeats: int
) -> list[Gate]:
    measured = measure(replays, question.slo)
    required = required_gates(question.told, measured)
    if not question.is_vllm:
        return required or [least_gate(measured)]
    assert question.twin is not None
    promised = gates(
        question.twin,
        question.slo,
        question.max_num_seqs,
        windows,
        measured,
        hash_block_size=question.trace_block_size,
        hit_share=question.hit_share,
        tolerance=question.tolerance,
        repeats=repeats,
    )
    # a server that runs does not tell its preemptions a replay
    held = {gate.name for gate in required} | ({"preemptions"} if question.place else set())
    return [*required, *(gate for gate in promised if gate.name not in held)]


def windows_of(
    requests: Sequence[TraceRequest], question: Verification
) -> list[tuple[Window, list[TraceRequest]]]:
    """Return the windows that are replayed, each with the requests that it sends."""
    part = choose_part(requests, question.window, length_s=question.step_s, busiest=busiest_window)
    token_s = question.tpot_s
    if question.twin is not None:
        law = question.twin.law
        token_s = float(law.decode_s[min(question.max_num_seqs, len(law.decode_s) - 1)])
    outputs = np.percentile([one.output_length for one in requests], 95)
    windows = sample_windows(
        requests, part, step_s=question.step_s, drain_s=LOADED * token_s * float(outputs)
    )
    return [(window, in_window(requests, window)) for window in windows]


async def _replayed(
    engine: Engine,
    window: Window,
    sent: Sequence[TraceRequest],
    question: Verification,
    listeners: _Listeners,
) -> Replay:
    tell = listeners.tell
    prompt = partial(
        prompt_token_ids,
        seed=0,
        vocab_size=engine.facts.vocab_size,
        block_size=question.trace_block_size,
    )
    plan = plan_requests(sent, window, max_model_len=engine.facts.max_model_len, prompt=prompt)

    def retry(flaws: Sequence[str], _: float) -> bool:
        tell(f"Warning: {'; '.join(flaws)}: measuring once more")
        return True

    result = await replay_soundly(
        plan,
        engine,
        window,
        max_num_seqs=question.max_num_seqs,
        rule=CutRule(question.slo, floor=0.0),
        read=listeners.read,
        progress=listeners.progress,
        begun=lambda: tell(f"replaying {window} of the trace"),
        retry=retry,
    )
    if result.flaws:
        tell(f"Warning: {'; '.join(result.flaws)}: the numbers are of that too")
    return result
