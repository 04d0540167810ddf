"""One sweep for each kind of node, as a Ray task whose run folder travels.

A task writes the files of the run so far into a folder of its own, resumes the run there as on this
machine, and yields what is new in the folder. When its node is lost, the files go to another node
of the same kind.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tuner.engines import devices
from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.vllm.start import VllmStarter, default_log
from tuner.errors import EngineError, TunerError
from tuner.runs import journal
from tuner.runs.bench import Watcher, execute
from tuner.runs.cluster.session import LostError, RaySession
from tuner.runs.cluster.share import Share
from tuner.runs.result import SweepOutcome
from tuner.runs.settings import SweepSettings
from tuner.runs.sweep.sweep import sweep
from tuner.trace.trace import TraceRequest

MOST_LOSSES = 3
"""Nodes that are lost one after the other before anything new was measured: then it is not chance.
"""

ROOM_TIMEOUT_S = 120.0
"""How long the cluster may have no room for an engine."""

LOOK_S = 1.0
"""Seconds between two looks at what is new in a folder."""

Ended = SweepOutcome | tuple[str, str]
"""How a sweep ended; an error as message and hint, which it would lose on the way."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes that are alike, and what a sweep on one of them takes."""

    name: str
    nodes: Mapping[str, str]
    """Id → name."""

    device: Mapping[str, ArgumentValue]
    share: Share
    starter: Starter


@dataclass(frozen=True, slots=True)
class Job:
    """A sweep as it travels."""

    requests: Sequence[TraceRequest]
    settings: SweepSettings
    starter: Starter
    omp_threads: str | None = field(default_factory=lambda: os.environ.get("OMP_NUM_THREADS"))
    """Of the driver's environment, for engines on GPUs: Ray sets it to the few CPUs they take."""


@dataclass(frozen=True, slots=True)
class News:
    """What is new in a run: the ends of its files, the lines to show, and how it ended."""

    files: Mapping[str, bytes]
    lines: Sequence[tuple[str, str]] = ()
    """Method of a watcher → text."""

    ended: Ended | None = None


class _Lines:
    """Keeps the lines that a watcher shows, and nothing that comes too often to travel."""

    def __init__(self) -> None:
        self.new: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        def keep(text: object, *_: object) -> None:
            if name in {"stage", "warn"}:
                self.new.append((name, str(text)))

        return keep


async def sweep_all(
    session: RaySession,
    jobs: Mapping[str, tuple[Kind, Job]],
    books: Mapping[str, journal.Journal],
    watchers: Mapping[str, Watcher],
) -> dict[str, SweepOutcome | TunerError]:
    """Make every kind's sweep at the same time; return each outcome, or what ended it."""
    sweeps = (_followed(session, *jobs[name], books[name], watchers[name]) for name in jobs)
    return dict(zip(jobs, await asyncio.gather(*sweeps), strict=True))


async def _followed(
    session: RaySession, kind: Kind, job: Job, book: journal.Journal, watcher: Watcher
) -> SweepOutcome | TunerError:
    """Make one sweep; continue on another node of the kind where one is lost."""
    losses, cure = 0, "tuner resume continues with what was measured."
    while losses < MOST_LOSSES:
        losses += 1
        stream = session.stream(
            resumed, (_read(book.run_dir, {}), job), kind.share, list(kind.nodes),
            first_within_s=ROOM_TIMEOUT_S,
        )  # fmt: skip
        try:
            async with aclosing(stream) as every:
                async for news in every:
                    _write(book.run_dir, news.files)
                    losses = 1 if news.files else losses
                    for method, text in news.lines:
                        getattr(watcher, method)(text)
                    ended: Ended | None = news.ended
                    if isinstance(ended, tuple):
                        return EngineError(ended[0], hint=ended[1])
                    if ended is not None:
                        return ended
        except TimeoutError:
            return EngineError(
                f"the cluster has had no room for an engine ({kind.share}) for "
                f"{ROOM_TIMEOUT_S:.0f}s",
                hint=f"Free some of it; {cure}",
            )
        except LostError as error:
            watcher.warn(f"its node is lost: {error}")
        except TunerError as error:
            return error
    words = f"{MOST_LOSSES} nodes were lost one after the other"
    return EngineError(words, hint=f"Look into Ray's logs; {cure}")


def resumed(files: Mapping[str, bytes], job: Job) -> Iterator[News]:
    """Resume a run on this node; yield what is new until it has ended. A Ray task."""
    _prepare(job.omp_threads)
    with tempfile.TemporaryDirectory(prefix="tuner-ray-") as place, ThreadPoolExecutor(1) as pool:
        folder = Path(place) / "run"
        folder.mkdir(mode=0o700)
        _write(folder, files)
        book = journal.resume(folder, journal.read(folder).plan)
        lines, sizes = _Lines(), {name: len(content) for name, content in files.items()}
        yield News({})  # there was room
        done = pool.submit(_sweep, job, book, lines)
        while not done.done():
            wait([done], timeout=LOOK_S)
            new, lines.new = lines.new, []
            yield News(_read(folder, sizes), new)
        yield News(_read(folder, sizes), lines.new, done.result())


def _sweep(job: Job, book: journal.Journal, lines: _Lines) -> Ended:
    starter, read = job.starter, None
    if isinstance(starter, VllmStarter):
        starter.log, read = default_log(), devices.DeviceMeter().read
    watcher = cast("Watcher", lines)
    work = sweep(job.requests, starter, job.settings, book, watcher, read_device=read)
    try:
        return execute(work, starter, book)
    except TunerError as error:
        return str(error), error.hint


def _prepare(omp_threads: str | None) -> None:
    """Make this process ready for engines: a node serves what is on it, and fetches nothing."""
    for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ.setdefault(key, "1")
    if devices.device_facts().get("kind") == "gpu":
        os.environ.pop("OMP_NUM_THREADS", None)
        if omp_threads is not None:
            os.environ["OMP_NUM_THREADS"] = omp_threads


def _read(folder: Path, sizes: dict[str, int]) -> dict[str, bytes]:
    """Return what is beyond these sizes of the run's files, and note how far they come. The journal
    is first: the files that its events name were there before it."""
    result: dict[str, bytes] = {}
    for path in [folder / journal.JOURNAL, *sorted((folder / journal.REPLAYS).glob("*.npz"))]:
        name = str(path.relative_to(folder))
        content = path.read_bytes()[sizes.get(name, 0) :]
        if name == journal.JOURNAL:
            content = content[: content.rfind(b"\n") + 1]
        if content:
            result[name] = content
            sizes[name] = sizes.get(name, 0) + len(content)
    return result


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Append what is new to a run's files, the journal last."""
    for name in sorted(files, key=lambda item: item == journal.JOURNAL):
        path = folder / name
        if path.resolve().parent not in {folder.resolve(), (folder / journal.REPLAYS).resolve()}:
            raise LostError(f"it named {name!r} as a file of the run")
        path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "ab") as file:
            file.write(files[name])
            file.flush()
            os.fsync(file.fileno())


def resolved(starter: Starter, ceiling: int) -> Any:  # noqa: ANN401 - arguments, or two texts
    """Return an engine's arguments as a node resolves them, or message and hint of its refusal.

    Called on the node, in a process of its own.
    """
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides all from who takes none
    if isinstance(starter, VllmStarter):
        starter.log = default_log()
    try:
        return starter.resolve(max_num_seqs=ceiling)
    except TunerError as error:
        return str(error), error.hint
