"""The approaches of ``tuner compare``, in the order of the story, and how each is started."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tuner.engines.seam import Engine, Starter
from tuner.engines.server.start import ServerStarter
from tuner.engines.vllm.start import VllmStarter
from tuner.engines.workers import Batching, start_workers
from tuner.errors import UsageError

UNTUNED = 64
"""``max_num_seqs`` that nobody measured."""

ONE, STATIC = Batching(), Batching(16, 0.05)


@dataclass(frozen=True, slots=True)
class Approach:
    name: str
    title: str
    workers: int = 0
    """Worker processes behind queues, on one device; 0 batches continuously."""

    batching: Batching = ONE


OF_PROFILE, SERVER = "profile", "server"
APPROACHES: tuple[Approach, ...] = (
    Approach("worker", "one worker", 1),
    Approach("two-workers", "two workers", 2),
    Approach("static", "static batching", 1, STATIC),
    Approach("untuned", "continuous, untuned"),
    Approach("tuned", "continuous, tuned"),
    Approach(SERVER, "the same behind a server"),
    Approach(OF_PROFILE, "the whole profile"),
)


@dataclass(slots=True)
class Testbed:
    """The machine on which approaches are started, one at a time."""

    base: Starter
    of_profile: Starter | None
    """With every argument of the profile; None without one."""

    tuned: int
    profile_cap: int
    log: Path

    async def start(self, approach: Approach) -> Engine:
        """Start an engine that has the whole device to itself. Raises EngineError."""
        if isinstance(self.base, VllmStarter):
            if approach.workers:
                return await start_workers(
                    self.base, approach.workers, approach.batching, log=self.log
                )
            if approach.name == SERVER:
                return await ServerStarter.like(self.base).start(max_num_seqs=self.tuned)
        starter, size = self.base, UNTUNED if approach.name == "untuned" else self.tuned
        if approach.name == OF_PROFILE:
            assert self.of_profile is not None  # or it is not chosen
            starter, size = self.of_profile, self.profile_cap
        return await starter.start(max_num_seqs=size)


def chosen(names: str | None, *, has_profile: bool, simulated: bool) -> tuple[Approach, ...]:
    """Return the approaches of a list such as ``worker,tuned``, in the order of the story.

    None is all that there can be but the server, which takes half a minute to start. Raises
    UsageError for a name that is unknown or there twice, or needs what is not there.
    """
    possible = {
        one.name: one
        for one in APPROACHES
        if (has_profile or one.name != OF_PROFILE)
        and not (simulated and (one.workers or one.name == SERVER))
    }
    if names is None:
        return tuple(one for name, one in possible.items() if name != SERVER)
    asked = names_in(names, [one.name for one in APPROACHES], option="--approaches")
    for name in asked:
        if name not in possible:
            needs = "a profile" if name == OF_PROFILE else "a real engine"
            raise UsageError(
                f"--approaches {name} needs {needs}", hint=f"Choose of {', '.join(possible)}."
            )
    return tuple(one for name, one in possible.items() if name in asked)


def names_in(text: str, known: Collection[str], *, option: str) -> list[str]:
    """Read a list of names. Raises UsageError for one that is unknown or there twice."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(
                f"{option}: {name!r} is not known", hint=f"Choose of {', '.join(known)}."
            )
    if len(set(names)) < len(names):
        raise UsageError(f"{option}: a name is there twice", hint="Give each once.")
    return names
