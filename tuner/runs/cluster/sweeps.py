"""One sweep for each kind of node, each with its own journal: curves beside each other, never one
curve of two machines."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.engines.seam import Starter
from tuner.errors import EngineError, TunerError
from tuner.runs.cluster.kinds import Description, grouped
from tuner.runs.cluster.session import LostError, RaySession, WorkerHandle
from tuner.runs.cluster.share import Share
from tuner.runs.cluster.sweep_worker import Job, SweepWorker, WorkerMessage
from tuner.runs.cluster.worker_pool import MOST_LOSSES, ROOM_TIMEOUT_S, no_room, none_lasts
from tuner.runs.engine_runner import Watcher
from tuner.runs.journal import Journal
from tuner.runs.outcome import SweepOutcome
from tuner.runs.settings import SweepSettings
from tuner.trace.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes that are alike, and what a sweep on one of them takes."""

    name: str
    nodes: Mapping[str, str]
    """Id → name."""

    description: Description
    share: Share
    starter: Starter
    is_simulated: bool


@dataclass(frozen=True, slots=True)
class Sweep:
    """A kind's sweep that is about to begin."""

    kind: Kind
    requests: Sequence[TraceRequest]
    settings: SweepSettings
    book: Journal
    watcher: Watcher


def named(said: Mapping[str, Description]) -> dict[str, list[str]]:
    """Return kinds by short names of their devices: those of one device that differ in something
    else get numbers.

    >>> from tuner.runs.cluster.kinds import Description
    >>> one = Description({"name": "NVIDIA H100 80GB HBM3"}, {}, "2.60", "")
    >>> named({"a": one, "b": one})
    {'nvidia-h100-80gb-hbm3': ['a', 'b']}
    """
    found: dict[str, list[str]] = {}
    for group in grouped(said):
        device = str(said[group[0]].device.get("name"))
        slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "kind"
        names = [slug, *(f"{slug}-{number}" for number in range(2, len(found) + 2))]
        found[next(name for name in names if name not in found)] = group
    return found


async def sweep_all(
    session: RaySession, sweeps: Sequence[Sweep]
) -> dict[str, SweepOutcome | TunerError]:
    """Make every kind's sweep at the same time; return what each found, or what ended it."""
    tasks = [asyncio.create_task(_sweep(session, one)) for one in sweeps]
    try:
        found = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {one.kind.name: each for one, each in zip(sweeps, found, strict=True)}


async def _sweep(session: RaySession, one: Sweep) -> SweepOutcome | TunerError:
    """Make one sweep; go on elsewhere on nodes of the same kind when its worker is gone."""
    kind = one.kind
    job = Job(
        one.requests,
        one.settings,
        kind.starter,
        kind.description if kind.is_simulated else None,
        os.environ.get("OMP_NUM_THREADS"),
    )
    losses = 0
    while True:
        known = len(one.book.events)
        handle = session.start_worker(SweepWorker, (job,), kind.share, list(kind.nodes))
        try:
            return await _followed(handle, one)
        except LostError as error:
            one.watcher.warn(f"its worker is gone: {error}")
            losses = losses + 1 if len(one.book.events) == known else 1
            if losses == MOST_LOSSES:
                return none_lasts(error)
        except TunerError as error:
            return error
        finally:
            handle.dismiss()


async def _followed(handle: WorkerHandle, one: Sweep) -> SweepOutcome:
    """Keep and tell what a worker measures. Raises LostError, TunerError."""
    try:
        async with asyncio.timeout(ROOM_TIMEOUT_S):
            await handle.call("describe")
    except TimeoutError:
        raise no_room(one.kind.share) from None
    one.watcher.stage(f"on {', '.join(sorted(set(one.kind.nodes.values())))}")
    book = one.book
    replays = {event["file"]: book.replay(event) for event in book.of("replay")}
    told: WorkerMessage | None = None
    async for told in handle.stream("sweep", book.events, replays):
        _keep(told, book)
        for method, arguments in told.said:
            getattr(one.watcher, method)(*arguments)
        if told.report.failure is not None:
            message, hint = told.report.failure
            raise EngineError(message, hint=hint)
    if told is None or told.outcome is None:
        raise LostError("its sweep ended early")
    return told.outcome


def _keep(told: WorkerMessage, book: Journal) -> None:
    lines, stored = [], 0
    for event in told.report.events:
        if "file" in event:
            file = book.store(told.report.replays[event["file"]], ahead=stored)
            stored += 1
            lines.append({**event, "file": file})
        else:
            lines.append(event)
    if lines:
        book.append_all(lines)
