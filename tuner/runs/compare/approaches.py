"""The approaches of ``tuner compare``, in the order of the story.

To add one, write its start and a row of APPROACHES.
"""

from tuner.engines.seam import Engine
from tuner.engines.workers.seam import Approach, Batching, Setup, Testbed
from tuner.errors import UsageError
from tuner.runs.compare.load_levels import names_in


async def _one_worker(testbed: Testbed, _setup: Setup) -> Engine:
    """A worker process behind queues, before a synchronous engine: one request at a time."""
    return await testbed.workers(1, Batching())


async def _two_workers(testbed: Testbed, _setup: Setup) -> Engine:
    """Two such workers on one device, with half of its memory each."""
    return await testbed.workers(2, Batching())


async def _static_batching(testbed: Testbed, setup: Setup) -> Engine:
    """A worker that waits for a batch, and answers when its slowest request is done."""
    return await testbed.workers(1, setup.static)


async def _untuned(testbed: Testbed, setup: Setup) -> Engine:
    """Continuous batching with a ``max_num_seqs`` that nobody has measured."""
    return await testbed.continuous(max_num_seqs=setup.untuned)


async def _tuned(testbed: Testbed, setup: Setup) -> Engine:
    """Continuous batching with the ``max_num_seqs`` that was found, and else as untuned."""
    return await testbed.continuous(max_num_seqs=setup.tuned)


async def _behind_server(testbed: Testbed, setup: Setup) -> Engine:
    """The tuned one behind ``vllm serve``: what its users see, front end included."""
    return await testbed.served(max_num_seqs=setup.tuned)


async def _full_profile(testbed: Testbed, setup: Setup) -> Engine:
    """Continuous batching with every argument of a serving profile."""
    assert setup.of_profile is not None  # or it is not chosen
    return await testbed.continuous(max_num_seqs=setup.of_profile, of_profile=True)


OF_PROFILE = "profile"
SERVER = "server"
OF_TUNED = {"tuned", SERVER}
"""Approaches that need the tuned value."""

APPROACHES: tuple[Approach, ...] = (
    Approach("worker", "one worker", _one_worker),
    Approach("two-workers", "two workers", _two_workers),
    Approach("static", "static batching", _static_batching),
    Approach("untuned", "continuous, untuned", _untuned),
    Approach("tuned", "continuous, tuned", _tuned),
    Approach(SERVER, "the same behind a server", _behind_server),
    Approach(OF_PROFILE, "the whole profile", _full_profile),
)


def chosen(names: str | None, *, has_profile: bool) -> tuple[Approach, ...]:
    """Return the approaches of a list such as ``worker,tuned``, in the order of the story.

    None is all that there can be but the server, which takes half a minute to start. Raises
    UsageError for a name that is unknown or there twice.
    """
    if names is None:
        left_out = {SERVER} if has_profile else {SERVER, OF_PROFILE}
        return tuple(one for one in APPROACHES if one.name not in left_out)
    known = {one.name: one for one in APPROACHES}
    asked = names_in(names, known, option="--approaches")
    if OF_PROFILE in asked and not has_profile:
        raise UsageError(
            "--approaches profile: there is no profile", hint="Give --profile, or leave it out."
        )
    return tuple(one for name, one in known.items() if name in asked)
