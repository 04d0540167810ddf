"""The workers of a run: started, replaced when they are gone, waited for while they are busy."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tuner.errors import EngineError, TunerError
from tuner.runs.cluster.kinds import Description, difference
from tuner.runs.cluster.session import LostError, WorkerHandle
from tuner.runs.engine_runner import Watcher
from tuner.runs.refine.trial_runner import MOST_FAILURES

ROOM_TIMEOUT_S = 120.0
"""How long the cluster may have no room for any engine before the run ends."""

MOST_LOSSES = 3
"""Workers that are gone one after the other before they could begin, or with one and the same
configuration: then it is not chance."""

CLOSE_S = 15.0
"""How long an engine may take to stop in order; then its worker is ended."""


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """A worker that has answered."""

    handle: WorkerHandle
    name: str
    """The same for the same place on the same node, also in a later run."""

    node: str
    slot: int
    known: set[int] = field(default_factory=set)
    """Numbers of the workloads that it was told."""

    built: tuple[object, ...] | None = None
    """What its engine was built for; None while it has none."""

    engine: int = 0
    """Number of that engine among the run's starts."""

    failures: int = 0
    """Trials that failed there since the last one that did not."""

    unfit: bool = False
    """Whether it is given up, and nobody is started in its place."""

    lost: asyncio.Event = field(default_factory=asyncio.Event)


Prepare = Callable[[WorkerSlot], Awaitable[None]]
"""Awaited with every new place before it is anybody's."""


class WorkerPool:
    """Up to ``width`` workers on the nodes of one kind (id → name)."""

    def __init__(  # noqa: PLR0913 - how to start one, where, and who is told
        self,
        start_worker: Callable[[], WorkerHandle],
        nodes: Mapping[str, str],
        *,
        takes: str,
        width: int,
        watcher: Watcher,
        expected: Description | None,
    ) -> None:
        self.width = width
        self._start_worker, self._nodes, self._takes = start_worker, nodes, takes
        self._watcher, self._expected = watcher, expected
        self._keepers: dict[int, asyncio.Task[None]] = {}
        self._places: list[WorkerSlot] = []
        self._idle: list[WorkerSlot] = []
        self._broken: TunerError | None = None
        self._unfit: TunerError | None = None
        self._held: list[WorkerHandle] = []
        """Where nothing is served: kept to the end, or another worker would get their room."""

        self._left: set[str] = set()
        """Names of such places."""

        self._change = asyncio.Event()

    def start(self, prepare: Prepare, *, width: int) -> None:
        """Begin to start so many, unless that was done."""
        for slot in range(width if not self._keepers else 0):
            self._keepers[slot] = asyncio.create_task(self._keep(slot, prepare))

    async def take(self, pick: Callable[[Sequence[WorkerSlot]], WorkerSlot | None]) -> WorkerSlot:
        """Wait until ``pick`` returns one of the idle places, or one that is lost; hold it.

        Raises EngineError when there is nobody to wait for.
        """
        while True:
            if self._broken is not None:
                raise self._broken
            if self._is_over() and self._unfit is not None:
                raise self._unfit
            if (place := pick(self._idle)) is not None:
                if place in self._idle:
                    self._idle.remove(place)
                return place
            try:
                async with asyncio.timeout(None if self._places else ROOM_TIMEOUT_S):
                    await self._change.wait()
            except TimeoutError:
                raise no_room(self._takes) from None

    def give(self, place: WorkerSlot) -> None:
        """Let others have a place again."""
        if not place.lost.is_set():
            self._idle.append(place)
            self._changed()

    def lose(self, place: WorkerSlot) -> None:
        """Have a place replaced whose worker is gone."""
        if place in self._places:
            self._places.remove(place)
        place.lost.set()
        self._changed()

    def note(self, place: WorkerSlot, failed: str | None) -> None:
        """Count the trials that failed in a place: one where nothing serves is left out, and the
        others go on. When none is left, that ends the run."""
        if failed is None:
            place.failures = 0
            return
        place.failures += 1
        self._watcher.warn(f"a trial failed on {place.node}: {failed}")
        if place.failures < MOST_FAILURES:
            return
        what = f"{place.failures} trials failed one after the other on {place.node}: {failed}"
        self._unfit = EngineError(what, hint="Look into vLLM's log on that node.")
        self._watcher.warn(f"a worker on {place.node} is left out: nothing is served there")
        place.unfit = True
        self._left.add(place.name)
        self._held.append(place.handle)
        self.lose(place)

    def shrink(self, keep: WorkerSlot | None) -> None:
        """Give back all places but one: this one, or whichever is idle."""
        keep = keep or next(iter(self._idle), None)
        slot = keep.slot if keep is not None else next(iter(self._keepers), 0)
        for place in [one for one in self._places if one.slot != slot]:
            self._places.remove(place)
            if place in self._idle:
                self._idle.remove(place)
        for other in [one for one in self._keepers if one != slot]:
            self._keepers.pop(other).cancel()

    async def close(self) -> None:
        """End every worker: in order those that do nothing, the others at once."""
        idle, self._idle = self._idle, []
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                closing = [place.handle.call("close") for place in idle]
                await asyncio.gather(*closing, return_exceptions=True)
        keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        self._keepers.clear()
        while self._held:
            self._held.pop().dismiss()

    async def _keep(self, slot: int, prepare: Prepare) -> None:
        """Have a worker in this slot as long as the run goes on."""
        losses = 0
        while losses < MOST_LOSSES:
            handle = self._start_worker()
            try:
                place = await self._introduced(handle, slot)
                if place is None:
                    return
                await prepare(place)
                self.give(place)
                await place.lost.wait()
                losses = 0
                if place.unfit:
                    return
            except LostError as error:
                losses += 1
                self._watcher.warn(f"a worker is gone before it could begin: {error}")
                if losses == MOST_LOSSES:
                    self._broken = none_lasts(error)
            except TunerError as error:
                self._broken = error
                return
            finally:
                if handle not in self._held:
                    handle.dismiss()
                self._changed()

    async def _introduced(self, handle: WorkerHandle, slot: int) -> WorkerSlot | None:
        """Wait until there is room and the worker has said what it is; None for another kind."""
        said: Description = await handle.call("describe")
        node = handle.node_id()
        where = self._nodes.get(node, node[:8])
        self._expected = self._expected or said
        if (why := difference(self._expected, said)) is not None:
            self._watcher.warn(f"a worker on {where} is left out: {why}")
            self._unfit = EngineError(
                f"no worker is like those before: on {where} {why}",
                hint="Resume where nodes like those are, or begin anew here.",
            )
            return None
        taken = {one.name for one in self._places} | self._left
        names = (f"{node[:12]}.{number}" for number in range(len(taken) + 1))
        name = next(name for name in names if name not in taken)
        place = WorkerSlot(handle, name, where, slot)
        self._places.append(place)
        self._changed()
        return place

    def _is_over(self) -> bool:
        """Whether nobody is left who might have a place to offer."""
        done = [keeper for keeper in self._keepers.values() if keeper.done()]
        for keeper in done:
            keeper.result()
        return not self._places and len(done) == len(self._keepers)

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


def no_room(takes: object) -> EngineError:
    return EngineError(
        f"the cluster has had no room for an engine ({takes}) for {ROOM_TIMEOUT_S:.0f}s",
        hint="Free some of it; --resume goes on with what was measured.",
    )


def none_lasts(error: LostError) -> EngineError:
    return EngineError(
        f"{MOST_LOSSES} workers are gone one after the other: {error}",
        hint="Look into Ray's logs; --resume goes on with what was measured.",
    )
