"""What besides the engine shaped the numbers: readings of the device, stalls, a late client.

Nothing here ends a run. What was measured with flaws is measured once more where there is time for
it; the better of the two counts, and its flaws stay with it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Generic, TypeVar

import numpy as np

from tuner.engines.seam import EngineFacts, IterationLog
from tuner.replay.records import DEVICE, DeviceLog, Floats, Replay, ttft_s

OTHERS_LIMIT = 0.25
"""Share of the CPU cores. The choice is replayed once more above it (docs/decisions): lower, and
every shared machine pays for that; higher, and its numbers are those of others too."""

CROWDED_LIMIT = 0.5
"""Beside four busy loops on two cores others took 58 to 88 %: an SLO was derived at 17 to 90 ms a
token instead of 14, and 3 to 93 % promised instead of 98."""

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

EVERY_S = 1.0
"""More readings would take time from what is measured: each asks a driver in a thread."""

OURS = ("requests left late", "outputs were read late")
"""How the flaws begin that tell of us and not of what else the machine did: latency counts from the
planned time, so that they are in every number already."""


def _drop(mhz: Floats) -> np.floating:
    """Return the fall from the highest reading to the mean, as a share."""
    return 1 - np.mean(mhz) / np.max(mhz)


_USE: dict[str, tuple[Callable[[Floats], np.floating], float, str]] = {
    "utilisation": (np.mean, np.inf, ""),
    "memory_bytes": (np.max, np.inf, ""),
    "others": (np.mean, OTHERS_LIMIT, "other processes took {:.0%} of the CPU cores"),
    # lower than others, because nothing is stolen from a core that is idle
    "steal": (np.mean, 0.05, "the hypervisor gave {:.0%} of the CPU to other machines"),
    # readings come once a second: lower, and a single one of ten would be named
    "throttled": (np.mean, 0.10, "heat or a fault slowed the GPU down {:.0%} of time"),
    "foreign": (np.mean, 0.10, "other processes were on the GPU {:.0%} of time"),
    # only readings count in which the GPUs were busy and not at their power limit; a machine that
    # became 10 % slower counts as drifted (``DRIFT_LIMIT`` of the knee)
    "clock_mhz": (_drop, 0.10, "the GPU's clock fell by {:.0%} on average"),
}
"""Column of DEVICE → what is made of its readings, the limit above which that disturbs, and the
message."""


def device_use(logs: Sequence[DeviceLog]) -> dict[str, float]:
    """Return what the readings of several replays say together, by the columns that are known."""
    log = np.concatenate(logs)
    known = {name: log[name][~np.isnan(log[name])] for name in _USE}
    return {name: float(_USE[name][0](column)) for name, column in known.items() if len(column)}


def disturbance(log: DeviceLog) -> str | None:
    """Name what besides the engine shaped the numbers; None when nothing was seen."""
    for name, value in device_use([log]).items():
        if value > _USE[name][1]:
            return _USE[name][2].format(value)
    return None


def crowded(logs: Sequence[DeviceLog]) -> str | None:
    """Say how much of the CPU cores others took from an engine that computes on them; None where
    enough was left. Above CROWDED_LIMIT what is measured is of nobody's machine."""
    use = device_use(logs)
    taken = use.get("others", 0.0) + use.get("steal", 0.0)
    is_on_cores = "utilisation" in use and "memory_bytes" not in use
    is_crowded = is_on_cores and taken > CROWDED_LIMIT
    return f"others took {taken:.0%} of the CPU cores" if is_crowded else None


Result = TypeVar("Result")

Read = Callable[[], tuple[float, ...]]
"""Returns the fields of DEVICE since its last call."""

Retry = Callable[[Sequence[str], float], bool]
"""Takes the flaws of an attempt and the seconds it took; returns whether to make another."""


@dataclass(frozen=True, slots=True)
class Attempt(Generic[Result]):
    """Something that was measured, and what else than the engine shaped it."""

    result: Result
    device: DeviceLog
    flaws: tuple[str, ...]
    elapsed_s: float


async def soundly(
    work: Callable[[], Awaitable[Result]],
    flaws_in: Callable[[Result], Iterator[str]],
    *,
    read: Read | None,
    retry: Retry,
) -> Attempt[Result]:
    """Measure beside readings of the device; once more where that has flaws and ``retry`` allows
    it. Return the one with fewer flaws."""
    first = await _attempt(work(), flaws_in, read)
    if not first.flaws or not retry(first.flaws, first.elapsed_s):
        return first
    return min(first, await _attempt(work(), flaws_in, read), key=lambda each: len(each.flaws))


async def _attempt(
    work: Awaitable[Result], flaws_in: Callable[[Result], Iterator[str]], read: Read | None
) -> Attempt[Result]:
    rows, clock = list[tuple[float, ...]](), asyncio.get_running_loop().time

    async def keep_reading() -> None:
        while read is not None:
            rows.append(await asyncio.to_thread(read))
            await asyncio.sleep(EVERY_S)

    begun_s, reading = clock(), asyncio.ensure_future(keep_reading())
    try:
        result = await work
    finally:
        reading.cancel()
        await asyncio.wait([reading])
    device = np.array(rows[1:], DEVICE)  # the first says nothing of this work
    flaws = (*flaws_in(result), *filter(None, [crowded([device])]))
    return Attempt(result, device, flaws, clock() - begun_s)


def stalls(log: IterationLog) -> Iterator[str]:
    """Say for how long the engine stood still: iterations that took STALL_FACTOR times as long as
    every other one, and STALL_S. They tile the busy time, so that none is missed."""
    longest_s: list[float] = np.sort(log["duration_s"])[::-1][: MOST_STALLS + 1].tolist()
    for number, (stall_s, next_s) in enumerate(pairwise(longest_s), 1):
        if stall_s >= max(STALL_S, STALL_FACTOR * next_s):
            yield from (f"the engine stood still for {s:.0f} s" for s in longest_s[:number])
            return


def flaws_of(result: Replay, facts: EngineFacts) -> Iterator[str]:
    """Yield what shaped a replay's numbers besides the engine, a phrase each."""
    yield from stalls(result.iterations)
    sent, tokens = result.requests, int(result.requests["output_tokens"].sum())
    if not len(result.iterations) and not tokens and (sent["outcome"] != "failed").any():
        yield f"no iteration ended in {result.elapsed_s:.0f} s"
    waits_s = [float(each) for each in ttft_s(sent) if not np.isnan(each)]
    limits_s = [median(waits_s)] if waits_s else []
    limits_s += [result.slo.ttft_s] if result.slo is not None and result.slo.ttft_s else []
    lag_s = float(np.percentile(sent["sent_s"] - sent["planned_s"], 99)) if len(sent) else 0.0
    if lag_s > max(LEAST_LAG_S, LAG_SHARE * min(limits_s, default=0.0)):
        yield f"{OURS[0]} (p99 {lag_s * 1e3:.0f} ms)"
    # On a CPU the engine takes the cores that we read on: the times between tokens are its own.
    joins = facts.arguments.get("speculative_config") or facts.arguments.get("stream_interval")
    late = np.maximum(0, sent["output_tokens"] - 1 - sent["gaps"]).sum()
    if facts.device.get("kind", "cpu") != "cpu" and not joins and late > JOINED_SHARE * tokens:
        yield f"{OURS[1]} ({late / tokens:.0%} of them together with others)"
