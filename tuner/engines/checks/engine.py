"""Checks that a running engine can be measured: its log, its limits, its end.

All of it is held against the engine's own iterations: a busy machine slows the checks down and
fails none of them, except those that compare two engines.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tuner.engines import devices, gpus
from tuner.engines.checks.check import MachineCheck, checked, skipped
from tuner.engines.seam import (
    ITERATION,
    Engine,
    EngineFacts,
    EngineRequest,
    IterationLog,
    Reply,
    Starter,
)
from tuner.errors import EngineError

TILING = 0.01
"""Share of the busy time that the log's rows may miss or count twice."""

SAME = 0.10
"""Largest difference between the step times of a live cap and of a fresh engine."""

MERGED = 0.10
"""Share of outputs that our own process may read too late."""

GONE_S = 30.0
SMALL_CAP = 8
FAST = 5000
"""Tokens a second: what one GPU gives to a few dozen users."""

FAST_STEP_S = SMALL_CAP / FAST
STAIRS = (8, 9, 16, 17)
"""vLLM's CUDA graphs have 8, 16 and 24 sequences: 9 cost what 16 do."""

PROMPT, OUTPUT = 40, 60
LONG_OUTPUT = 600
"""Four seconds of FAST."""

PAIRS = 3
T_QUANTILE = 4.303
"""Student's t with two degrees of freedom, two-sided 95 %: of the mean of three pairs."""


@dataclass(slots=True)
class Burst:
    """Requests sent at once, and what came back."""

    requests: list[EngineRequest]
    replies: list[Reply] = field(default_factory=list)
    log: IterationLog = field(default_factory=lambda: np.zeros(0, ITERATION))

    @property
    def tpot_s(self) -> NDArray[np.float64]:
        """Seconds between outputs of each request, on the engine's clock."""
        return np.array(
            [
                (one.output_s[-1] - one.output_s[0]) / (one.output_tokens - 1)
                for one in self.replies
                if len(one.output_s) > 1
            ]
        )


Twin = Callable[[Engine, IterationLog], Awaitable[MachineCheck]]
"""Holds the twin against an engine, knowing what it did in a burst."""


Tell = Callable[[list[MachineCheck]], None]
"""Keeps answers, as soon as they are there."""


async def checks(
    starter: Starter, *, ceiling: int, twin: Twin, tell: Tell, hollow: Starter | None = None
) -> None:
    """Start two engines, one at the ceiling, and tell the answers; then one whose iterations take
    FAST_STEP_S and compute nothing, if ``hollow`` starts such. Raises EngineError, with what was
    found until then told."""
    used_before = gpus.memory_used()
    engine = await starter.start(max_num_seqs=ceiling)
    tell([MachineCheck("engine", "PASS", _started(engine.facts))])
    device = engine.facts.device
    small = min(SMALL_CAP, ceiling)
    try:
        whole = await _burst(engine, cap=ceiling, number=2 * ceiling, output=OUTPUT)
        tell([*log_checks(whole), stairs(whole.log), front_end("front end", whole, fails=True)])
        tell([await _cut(engine, cap=ceiling)])
        tell([difference(await _pairs(engine, cap=small))])
        tell([await twin(engine, whole.log)])
        live = await _burst(engine, cap=small, number=4 * small, output=OUTPUT)
        live_blocks = engine.facts.kv_blocks
    finally:
        await engine.stop()
    tell([await _given_back("memory back", used_before, device)])
    before = devices.family()
    engine = await starter.start(max_num_seqs=small)
    try:
        fresh = await _burst(engine, cap=small, number=4 * small, output=OUTPUT)
        tell(same_engine(live.log, fresh.log, cap=small))
        blocks = f"{live_blocks:,} blocks at {ceiling}, {engine.facts.kv_blocks:,} at {small}"
        tell([MachineCheck("KV cache", "PASS", blocks)])
        tell([await _killed(devices.family() - before, used_before, device)])
    finally:
        await engine.stop()
    if hollow is not None:
        tell([await _at_speed(hollow)])


async def _at_speed(hollow: Starter) -> MachineCheck:
    """Read what an engine would send that is as fast as a GPU's. On a CPU none will be."""
    name = f"front end at {FAST:,} tokens/s"
    try:
        engine = await hollow.start(max_num_seqs=SMALL_CAP)
    except EngineError as problem:
        return MachineCheck(name, "FAIL", str(problem), problem.hint)
    try:
        burst = await _burst(engine, cap=SMALL_CAP, number=4 * SMALL_CAP, output=LONG_OUTPUT)
        on_gpu = engine.facts.device.get("kind") == "gpu"
    finally:
        await engine.stop()
    return front_end(name, burst, fails=on_gpu)


def _started(facts: EngineFacts) -> str:
    return (
        f"{facts.engine} on {facts.device['name']}, started in {facts.start_s:.1f} s, "
        f"{facts.kv_cache_tokens:,} tokens of KV cache"
    )


async def _burst(engine: Engine, *, cap: int, number: int, output: int) -> Burst:
    """Send ``number`` requests at once under a cap, lengths of which fill and empty the batch."""
    await _limit(engine, cap)
    await engine.reset_prefix_cache()
    await engine.take_iterations()
    sent = Burst([_request(engine.facts, name, output + 2 * name) for name in range(number)])
    sent.replies = [Reply() for _ in sent.requests]
    await asyncio.gather(*map(engine.generate, sent.requests, sent.replies))
    sent.log = await engine.take_iterations()
    return sent


def _request(facts: EngineFacts, name: int, output: int) -> EngineRequest:
    room = facts.max_model_len - PROMPT
    ids = [16 + (name * 31 + at) % (facts.vocab_size - 16) for at in range(PROMPT)]
    return EngineRequest(f"doctor-{name}", ids, min(output, room))


async def _limit(engine: Engine, cap: int) -> None:
    tokens = engine.facts.arguments["max_num_batched_tokens"]
    assert isinstance(tokens, int)
    await engine.set_limits(max_num_seqs=cap, max_num_batched_tokens=tokens)


def log_checks(burst: Burst) -> list[MachineCheck]:
    """Return whether the rows tile the busy time, and whether their sums are the tokens."""
    log, requests = burst.log, burst.requests
    busy_s = max(one.output_s[-1] for one in burst.replies) - float(log["start_s"][0])
    missed = abs(float(log["duration_s"].sum()) / busy_s - 1)
    decoded = sum(one.output_length - 1 for one in requests)
    prompts = sum(len(one.prompt_token_ids) for one in requests)
    computed = int(log["prefill_tokens"].sum() + log["cached_tokens"].sum())
    # A preempted sequence computes again, and what was its newest token counts as prompt then.
    preempted, again = int(log["preemptions"].sum()), int(log["recomputed_tokens"].sum())
    to_decode, to_prefill = decoded - preempted, prompts + again + preempted
    exact = int(log["decode_seqs"].sum()) == to_decode and computed == to_prefill
    cure = "Report it with the engine's log: numbers of this engine cannot be trusted."
    return [
        checked(
            "log tiles",
            f"{len(log):,} iterations miss {missed:.2%} of {busy_s:.1f} s",
            failed=missed > TILING,
            cure=cure,
        ),
        checked(
            "log sums",
            f"{int(log['decode_seqs'].sum()):,} tokens decoded of {to_decode:,}, {computed:,} of "
            f"{to_prefill:,} prefilled",
            failed=not exact,
            cure=cure,
        ),
    ]


def stairs(log: IterationLog) -> MachineCheck:
    """Say what batches of 8, 9, 16 and 17 take: where graphs are padded, 9 take what 16 do."""
    times = {size: _step_s(log, size) for size in STAIRS}
    seen = [f"f({size}) {value * 1e3:.2f} ms" for size, value in times.items() if value is not None]
    if len(seen) < len(STAIRS):
        return skipped("stairs", "no batches of 8, 9, 16 and 17: give a --ceiling of 17 or more")
    return MachineCheck("stairs", "PASS", ", ".join(seen))


def _step_s(log: IterationLog, size: int) -> float | None:
    """Return the lower quartile: whatever disturbs an iteration makes it longer."""
    alone = log[(log["prefill_seqs"] == 0) & (log["decode_seqs"] == size)]
    return float(np.percentile(alone["duration_s"], 25)) if len(alone) else None


def same_engine(live: IterationLog, fresh: IterationLog, *, cap: int) -> list[MachineCheck]:
    """Return whether a live cap's full batches take as long as those of an engine of that size."""
    found = []
    for name, mixed in (("decode steps", False), ("mixed steps", True)):
        pair = [_full_s(log, cap, mixed=mixed) for log in (live, fresh)]
        if pair[0] is None or pair[1] is None:
            found.append(skipped(name, f"no such step of {cap} sequences on both engines"))
            continue
        apart = pair[0] / pair[1] - 1
        found.append(
            checked(
                name,
                f"live cap {cap} {pair[0] * 1e3:.2f} ms, fresh engine {pair[1] * 1e3:.2f} ms "
                f"({apart:+.1%})",
                failed=abs(apart) > SAME,
                cure="Run it again with nothing else on the machine; if it stays, sweep --fresh.",
            )
        )
    return found


def _full_s(log: IterationLog, cap: int, *, mixed: bool) -> float | None:
    full = log[log["decode_seqs"] + log["prefill_seqs"] == cap]
    full = full[(full["prefill_seqs"] > 0) == mixed]
    full = full[full["decode_seqs"] > 0]
    return float(np.percentile(full["duration_s"], 25)) if len(full) else None


def front_end(name: str, burst: Burst, *, fails: bool) -> MachineCheck:
    """Return how late we read, at the rate that the burst had."""
    lags = [
        one.last_token_s - one.output_s[-1]
        for one in burst.replies
        if one.last_token_s is not None and one.output_s
    ]
    tokens = sum(one.output_tokens for one in burst.replies)
    merged = sum(one.merged_outputs for one in burst.replies) / tokens
    rate = tokens / float(burst.log["duration_s"].sum())
    return checked(
        name,
        f"p99 {float(np.percentile(lags, 99)) * 1e3:.1f} ms behind at {rate:,.0f} tokens/s, "
        f"{merged:.1%} of outputs joined",
        failed=fails and merged > MERGED,
        cure="Give tuner a core of its own: at this rate it reads too late.",
    )


async def _cut(engine: Engine, *, cap: int) -> MachineCheck:
    """Abort a full batch, then set limits and forget prefixes at once."""
    replies = [Reply() for _ in range(2 * cap)]
    tasks = [
        asyncio.create_task(engine.generate(_request(engine.facts, name, 10**6), reply))
        for name, reply in enumerate(replies)
    ]
    while not any(one.output_tokens for one in replies):  # noqa: ASYNC110 - a reply tells nobody
        await asyncio.sleep(0.001)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    name, begun_s = "cut", asyncio.get_running_loop().time()
    try:
        await _limit(engine, 1)
        await engine.reset_prefix_cache()
    except EngineError as problem:
        return MachineCheck(name, "FAIL", str(problem), "Report it with the engine's log.")
    took_s = asyncio.get_running_loop().time() - begun_s
    await engine.take_iterations()
    return MachineCheck(
        name, "PASS", f"limits and prefix cache {took_s * 1e3:.0f} ms after a cut replay"
    )


async def _pairs(engine: Engine, *, cap: int) -> list[tuple[NDArray[np.float64], ...]]:
    """Replay the same burst twice, three times over."""
    pairs = []
    for _ in range(PAIRS):
        both = [await _burst(engine, cap=cap, number=4 * cap, output=OUTPUT) for _ in range(2)]
        pairs.append(tuple(one.tpot_s for one in both))
    return pairs


def difference(pairs: Sequence[tuple[NDArray[np.float64], ...]]) -> MachineCheck:
    """Say which difference two caps must have to be told apart by three pairs of such replays.

    It is half the width of the 95 % interval of a mean of pairs that are equal. The limit for
    attainment is one that nine of ten requests meet, as they do an SLO that can be promised. At the
    median of requests that are all alike, the least drift would move every one across it.
    """
    limit_s = float(np.quantile(np.concatenate([one for pair in pairs for one in pair]), 0.9))
    speeds = [float(np.log(pair[0].mean() / pair[1].mean())) for pair in pairs]
    met = [float((pair[0] <= limit_s).mean() - (pair[1] <= limit_s).mean()) for pair in pairs]
    tpot, attainment = (
        T_QUANTILE * float(np.std(one, ddof=1)) / PAIRS**0.5 for one in (speeds, met)
    )
    return MachineCheck(
        "A/A pairs",
        "PASS",
        f"seen from {np.expm1(tpot):.1%} of TPOT and {min(attainment, 1.0):.1%} of attainment on",
    )


async def _given_back(
    name: str, before: dict[str, int], device: Mapping[str, object]
) -> MachineCheck:
    if not before:
        return skipped(name, "no GPU here")
    return checked(
        name,
        "as before the engine",
        failed=not await gpus.given_back(before, device=device, within_s=GONE_S),
        cure="A process still holds it: see nvidia-smi.",
    )


async def _killed(
    processes: set[int], before: dict[str, int], device: Mapping[str, object]
) -> MachineCheck:
    """End an engine's processes by ``kill -9`` and wait until they and their memory are gone."""
    if not processes:
        return skipped("kill -9", "this engine has no process of its own")
    for pid in processes & devices.family():
        os.kill(pid, signal.SIGKILL)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    while (alive := processes & devices.alive()) and loop.time() < begun_s + GONE_S:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    left_s = max(0.0, begun_s + GONE_S - loop.time())
    freed = await gpus.given_back(before, device=device, within_s=left_s)
    return checked(
        "kill -9",
        f"{len(processes)} processes and their memory gone after {loop.time() - begun_s:.1f} s",
        failed=bool(alive) or not freed,
        cure="End what is left by hand: ps, nvidia-smi.",
    )
