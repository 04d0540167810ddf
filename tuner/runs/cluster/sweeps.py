"""One sweep for each kind of node, as a Ray task whose run folder travels.

A task writes the files of the run so far into a folder of its own, resumes the run there as on this
machine, and yields what is new in the folder. When its node is lost, the files go to another node
of the same kind. In the end the run is concluded here, from its files.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from tuner.engines import devices
from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.vllm.start import VllmStarter, default_log
from tuner.errors import EngineError, TunerError
from tuner.runs import journal
from tuner.runs.bench import Watcher, execute
from tuner.runs.cluster.nodes import Share
from tuner.runs.cluster.session import LostError, RaySession
from tuner.runs.result import SweepOutcome, rescore
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
class Part:
    """The sweep of one kind, and the run that it is kept in here."""

    kind: Kind
    requests: Sequence[TraceRequest]
    settings: SweepSettings
    book: journal.Journal
    watcher: Watcher


class News(NamedTuple):
    """What is new in a run: the ends of its files, the lines to show, and how it ended."""

    files: Mapping[str, bytes]
    lines: Sequence[tuple[str, str]] = ()
    """Method of a watcher → text."""

    ended: tuple[str, ...] | None = None
    """An error as message and hint, which it would lose on the way; empty where all went well."""


async def sweep_all(
    session: RaySession, parts: Mapping[str, Part]
) -> dict[str, SweepOutcome | TunerError]:
    """Make every kind's sweep at the same time; return each outcome, or what ended it."""
    errors = await asyncio.gather(*(_followed(session, part) for part in parts.values()))
    result = dict[str, SweepOutcome | TunerError]()
    for (name, part), error in zip(parts.items(), errors, strict=True):
        book = journal.read(part.book.run_dir)
        result[name] = error or rescore(part.requests, part.settings, book)
    return result


async def _followed(session: RaySession, part: Part) -> TunerError | None:
    """Make one sweep; continue on another node of the kind where one is lost. Return what ended
    it."""
    losses, kind, folder = 0, part.kind, part.book.run_dir
    cure = "tuner resume continues with what was measured."
    while losses < MOST_LOSSES:
        losses += 1
        work = (
            _read(folder, {}),
            part.requests,
            part.settings,
            kind.starter,
            os.environ.get("OMP_NUM_THREADS"),
        )
        stream = session.stream(
            resumed, work, kind.share, list(kind.nodes), first_within_s=ROOM_TIMEOUT_S
        )
        try:
            async with aclosing(stream) as every:
                async for news in every:
                    _write(folder, news.files)
                    losses = 1 if news.files else losses
                    for method, text in news.lines:
                        getattr(part.watcher, method)(text)
                    if news.ended is not None:
                        return (
                            EngineError(news.ended[0], hint=news.ended[1]) if news.ended else None
                        )
        except TimeoutError:
            seconds = f"{ROOM_TIMEOUT_S:.0f}s"
            return EngineError(
                f"the cluster has had no room for an engine ({kind.share}) for {seconds}",
                hint=f"Free some of it; {cure}",
            )
        except LostError as error:
            part.watcher.warn(f"its node is lost: {error}")
        except TunerError as error:
            return error
    words = f"{MOST_LOSSES} nodes were lost one after the other"
    return EngineError(words, hint=f"Look into Ray's logs; {cure}")


def resumed(
    files: Mapping[str, bytes],
    requests: Sequence[TraceRequest],
    settings: SweepSettings,
    starter: Starter,
    threads: str | None,
) -> Iterator[News]:
    """Resume a run on this node; yield what is new until it has ended. A Ray task.

    ``threads``: the driver's OMP_NUM_THREADS, which Ray sets to the few CPUs that engines on GPUs
    take.
    """
    for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):  # a node serves what is on it
        os.environ.setdefault(key, "1")
    if devices.device_facts().get("kind") == "gpu":
        os.environ.pop("OMP_NUM_THREADS", None)
        os.environ |= {} if threads is None else {"OMP_NUM_THREADS": threads}
    with tempfile.TemporaryDirectory(prefix="tuner-ray-") as place, ThreadPoolExecutor(1) as pool:
        folder = Path(place) / "run"
        folder.mkdir(mode=0o700)
        _write(folder, files)
        book = journal.resume(folder, journal.read(folder).plan)
        lines, sizes = _Lines(), {name: len(content) for name, content in files.items()}
        yield News({})  # there was room

        def work() -> tuple[str, ...]:
            read, watcher = None, cast("Watcher", lines)
            if isinstance(starter, VllmStarter):
                starter.log, read = default_log(), devices.DeviceMeter().read
            sweeping = sweep(requests, starter, settings, book, watcher, read_device=read)
            try:
                execute(sweeping, starter, book)
            except TunerError as error:
                return str(error), error.hint
            return ()

        done = pool.submit(work)
        while not done.done():
            wait([done], timeout=LOOK_S)
            new, lines.new = lines.new, []
            yield News(_read(folder, sizes), new)
        yield News(_read(folder, sizes), lines.new, done.result())


class _Lines:
    """Keeps the lines that a watcher shows, and nothing that comes too often to travel."""

    def __init__(self) -> None:
        self.new: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        def keep(text: object, *_: object) -> None:
            if name in {"stage", "warn"}:
                self.new.append((name, str(text)))

        return keep


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
