"""Judges, after a replay, what besides the engine shaped its numbers: the one place that does.

Nothing here ends a run. A replay with flaws is made once more where there is time for it; the
better of the two counts, and its flaws stay with it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

from tuner.engines.seam import Engine, EngineFacts, IterationLog
from tuner.replay.device_use import Read, crowded, device_use, while_reading
from tuner.replay.records import Replay, ttft_s
from tuner.replay.replay import CutRule, PlannedRequest, Progress, replay
from tuner.traffic.window import Window

LEAST_LAG_S = 0.005
"""A busy event loop wakes milliseconds late; no latency that anybody promises depends on them."""

LAG_SHARE = 0.10
"""Share of the median TTFT, or of its limit, that the sender's p99 lag may take."""

JOINED_SHARE = 0.10
"""Share of the output tokens that may be read together with others: more make the ITL ours."""

STALL_S = 3.0
STALL_FACTOR = 3.0
MOST_STALLS = 5
"""More iterations than these that are as long as each other are the engine's own: an iteration may
take seconds on a slow machine."""

OURS = ("requests left late", "outputs were read late")
"""How the flaws begin that tell of us and not of what else the machine did: latency counts from the
planned time, so that they are in every number already."""

Retry = Callable[[Sequence[str], float], bool]
"""Takes the flaws of an attempt and the seconds it took; returns whether to make another."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Attempt(Generic[Result]):
    """Something that was measured, and what else than the engine shaped it."""

    result: Result
    flaws: tuple[str, ...]
    lag_s: float = 0.0
    """Of two attempts with as many flaws the one with less of it counts."""


async def better_of_two(
    attempt: Callable[[], Awaitable[Attempt[Result]]], retry: Retry
) -> Attempt[Result]:
    """Measure; once more where that has flaws and ``retry`` allows it. Return the better one."""
    clock = asyncio.get_running_loop().time
    begun_s = clock()
    first = await attempt()
    if not first.flaws or not retry(first.flaws, clock() - begun_s):
        return first
    return min(first, await attempt(), key=lambda item: (len(item.flaws), item.lag_s))


async def replay_soundly(  # noqa: PLR0913 - what is sent where, when it is cut, and who watches
    plan: Sequence[PlannedRequest],
    engine: Engine,
    window: Window,
    *,
    max_num_seqs: int,
    rule: CutRule,
    read: Read | None,
    begun: Callable[[], None],
    retry: Retry,
    progress: Progress | None = None,
) -> Replay:
    """Replay a window's plan with an empty prefix cache; see ``better_of_two``.

    Raises EngineError when the engine dies.
    """

    async def attempt() -> Attempt[Replay]:
        begun()
        await engine.prepare()
        replaying = replay(
            plan,
            engine,
            max_num_seqs=max_num_seqs,
            scored_from_s=window.run_in_s,
            window_s=window.length_s,
            cut_rule=rule,
            progress=progress,
        )
        result, device = await while_reading(replaying, read)
        result = replace(result, device=device)
        flaws = stalls(result.iterations)
        if rule.stop_after_s is None:  # else only its iterations count
            flaws += tuple(flaws_of(result, engine.facts))
        return Attempt(replace(result, flaws=flaws), flaws, lag_p99_s(result))

    return (await better_of_two(attempt, retry)).result


def stalls(log: IterationLog) -> tuple[str, ...]:
    """Say for how long the engine stood still: iterations that took STALL_FACTOR times as long as
    every other one, and STALL_S. They tile the busy time, so that none is missed."""
    longest_s: list[float] = np.sort(log["duration_s"])[::-1][: MOST_STALLS + 1].tolist()
    for number, (stall_s, next_s) in enumerate(pairwise(longest_s), 1):
        if stall_s >= max(STALL_S, STALL_FACTOR * next_s):
            return tuple(f"the engine stood still for {each:.0f} s" for each in longest_s[:number])
    return ()


def lag_p99_s(replay: Replay) -> float:
    """Return the 99th percentile of how late requests left, in seconds."""
    lags_s = replay.requests["sent_s"] - replay.requests["planned_s"]
    return float(np.percentile(lags_s, 99)) if len(lags_s) else 0.0


def flaws_of(result: Replay, facts: EngineFacts) -> Iterator[str]:
    """Yield what shaped a replay's numbers besides the engine, a phrase each."""
    requests, slo, tokens = result.requests, result.slo, int(result.requests["output_tokens"].sum())
    has_waited = np.isin(requests["outcome"], ("cut", "aborted")).any()
    if has_waited and not len(result.iterations) and not tokens:
        yield f"no iteration ended in {result.elapsed_s:.0f} s"
    waits_s = ttft_s(requests)[~np.isnan(requests["first_s"])]
    limits_s = [float(np.median(waits_s))] if len(waits_s) else []
    limits_s += [slo.ttft_s] if slo is not None and slo.ttft_s is not None else []
    lag_s = lag_p99_s(result)
    if lag_s > max(LEAST_LAG_S, LAG_SHARE * min(limits_s, default=0.0)):
        yield f"{OURS[0]} (p99 {lag_s * 1e3:.0f} ms)"
    # On a CPU the engine takes the cores that we read on: the times between tokens are its own.
    joins = facts.arguments.get("speculative_config") or facts.arguments.get("stream_interval")
    if facts.device.get("kind", "cpu") != "cpu" and not joins:
        late = np.maximum(0, requests["output_tokens"] - 1 - requests["gaps"]).sum()
        if late > JOINED_SHARE * tokens:
            yield f"{OURS[1]} ({late / tokens:.0%} of them together with others)"
    if (taken := crowded(device_use([result.device]))) is not None:
        yield taken
