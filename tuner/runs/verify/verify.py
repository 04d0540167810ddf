"""The run of ``tuner verify``: one fresh engine, one step of replay, then the gates."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tuner.engines.seam import Engine, Starter
from tuner.profile.stored_twin import StoredTwin
from tuner.replay.attempts import replay_in_time
from tuner.replay.measure import measure
from tuner.replay.plan import plan_requests
from tuner.replay.readings import Read
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule
from tuner.runs.verify.gates import Gate, gates
from tuner.trace.trace import TraceRequest
from tuner.traffic.arrivals import busiest_window
from tuner.traffic.prompts import prompt_token_ids
from tuner.traffic.sampling import sample_windows
from tuner.traffic.slo import Slo
from tuner.traffic.window import Window, choose_part, in_window
from tuner.traffic.workload import LOADED, keep_what_fits


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
    seed: int


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of it."""

    gates: Sequence[Gate]
    engine_s: float
    """From the engine's start to its end."""


async def verify(
    requests: Sequence[TraceRequest],
    starter: Starter,
    question: Verification,
    *,
    tell: Callable[[str], None],
    read: Read | None,
) -> Verified:
    """Start the engine, replay, and return the gates.

    A broken promise is measured once more, and both replays count. Raises EngineError,
    GeneratorLateError; TraceError when nothing can be replayed.
    """
    tell(f"starting the engine with max_num_seqs={question.max_num_seqs}")
    now_s = asyncio.get_running_loop().time
    began_s = now_s()
    engine = await starter.start(max_num_seqs=question.max_num_seqs)
    try:
        for caution in engine.facts.cautions:
            tell(f"Warning: {caution}")
        kept, dropped = keep_what_fits(requests, max_model_len=engine.facts.max_model_len)
        if dropped:
            tell(f"Warning: {dropped} requests are longer than the engine takes: left out")
        windows = _windows(kept, question)
        replays = await _step(engine, windows, question, tell, read)
        found = _judged(replays, windows, question, repeats=1)
        if not all(gate.kept for gate in found):
            tell("a promise looks broken: measuring once more")
            replays += await _step(engine, windows, question, tell, read)
            found = _judged(replays, windows, question, repeats=2)
    finally:
        await engine.stop()
    return Verified(found, now_s() - began_s)


Windows = Sequence[tuple[Window, Sequence[TraceRequest]]]


async def _step(
    engine: Engine,
    windows: Windows,
    question: Verification,
    tell: Callable[[str], None],
    read: Read | None,
) -> list[Replay]:
    replays = []
    for window, sent in windows:
        replays.append(await _replayed(engine, window, sent, question, tell, read))
    return replays


def _judged(
    replays: Sequence[Replay], windows: Windows, question: Verification, *, repeats: int
) -> list[Gate]:
    return gates(
        question.twin,
        question.slo,
        question.max_num_seqs,
        windows,
        measure(replays, question.slo),
        hash_block_size=question.trace_block_size,
        hit_share=question.hit_share,
        tolerance=question.tolerance,
        repeats=repeats,
    )


def _windows(
    requests: Sequence[TraceRequest], question: Verification
) -> list[tuple[Window, list[TraceRequest]]]:
    part = choose_part(requests, question.window, length_s=question.step_s, busiest=busiest_window)
    law = question.twin.law
    middle_s = float(law.decode_s[min(question.max_num_seqs, len(law.decode_s) - 1)])
    outputs = np.percentile([one.output_length for one in requests], 95)
    windows = sample_windows(
        requests, part, step_s=question.step_s, drain_s=LOADED * middle_s * float(outputs)
    )
    return [(window, in_window(requests, window)) for window in windows]


async def _replayed(  # noqa: PLR0913, PLR0917 - what is sent where
    engine: Engine,
    window: Window,
    sent: Sequence[TraceRequest],
    question: Verification,
    tell: Callable[[str], None],
    read: Read | None,
) -> Replay:
    prompt = partial(
        prompt_token_ids,
        seed=question.seed,
        vocab_size=engine.facts.vocab_size,
        block_size=question.trace_block_size,
    )
    plan = plan_requests(sent, window, max_model_len=engine.facts.max_model_len, prompt=prompt)
    return await replay_in_time(
        plan,
        engine,
        window,
        max_num_seqs=question.max_num_seqs,
        rule=CutRule(question.slo, floor=0.0),
        read=read,
        begun=lambda: tell(f"replaying {window} of the trace"),
        late=lambda error, _: tell(f"Warning: {error}; thrown away"),
    )
