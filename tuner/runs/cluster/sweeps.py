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
from pathlib import Path
from typing import NamedTuple, cast

from tuner.engines import devices
from tuner.engines.seam import ArgumentValue, Starter
from tuner.engines.vllm.start import VllmStarter, default_log
from tuner.errors import EngineError, TunerError
from tuner.runs import journal
from tuner.runs.bench import Watcher, execute
from tuner.runs.cluster.nodes import Share
from tuner.runs.cluster.session import CURE, LostError, RaySession
from tuner.runs.result import SweepOutcome, rescore
from tuner.runs.sweep.conclusion import SweepSettings
from tuner.runs.sweep.sweep import sweep
from tuner.trace.trace import TraceRequest

MOST_LOSSES = 3
"""Nodes that are lost one after the other before anything new was measured: then it is not chance.
"""

LOOK_S = 1.0
"""Seconds between two looks at what is new in a folder."""


class Kind(NamedTuple):
    """Nodes that are alike, and what a sweep on one of them takes."""

    name: str
    nodes: Mapping[str, str]
    """Id → name."""

    device: Mapping[str, ArgumentValue]
    share: Share
    starter: Starter


class Part(NamedTuple):
    """The sweep of one kind, and the run that it is kept in here."""

    kind: Kind
    requests: Sequence[TraceRequest]
    settings: SweepSettings
    book: journal.Journal
    watcher: Watcher


class News(NamedTuple):
    """What is new in a run: the ends of its files, and the lines to show."""

    files: Mapping[str, bytes]
    lines: Sequence[tuple[str, str]] = ()
    """Method of a watcher → text."""

    error: tuple[str, str] | None = None
    """What ended it: message and hint, which an error would lose on the way."""


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
    while losses < MOST_LOSSES:
        losses += 1
        work = (_read(folder, {}), part.requests, part.settings, kind.starter)
        stream = session.stream(resumed, work, kind.share, list(kind.nodes))
        try:
            async with aclosing(stream) as every:
                async for news in every:
                    _write(folder, news.files)
                    losses = 1 if news.files else losses
                    for method, text in news.lines:
                        getattr(part.watcher, method)(text)
                    if news.error is not None:
                        return EngineError(news.error[0], hint=news.error[1])
        except LostError as error:
            part.watcher.warn(f"its node is lost: {error}")
        except TunerError as error:
            return error
        else:
            return None
    words = f"{MOST_LOSSES} nodes were lost one after the other"
    return EngineError(words, hint=f"Look into Ray's logs; {CURE}")


def resumed(
    files: Mapping[str, bytes],
    requests: Sequence[TraceRequest],
    settings: SweepSettings,
    starter: Starter,
) -> Iterator[News]:
    """Resume a run on this node; yield what is new until it has ended. A Ray task."""
    # a node serves what is on it
    os.environ |= dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    if devices.device_facts().get("kind") == "gpu":
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to the few CPUs that it takes
    with tempfile.TemporaryDirectory(prefix="tuner-ray-") as place, ThreadPoolExecutor(1) as pool:
        folder = Path(place) / "run"
        folder.mkdir(mode=0o700)
        _write(folder, files)
        book = journal.opened(folder, journal.read(folder).plan)
        lines, sizes = _Lines(), {name: len(files[name]) for name in files}
        yield News({})  # there was room

        def work() -> tuple[str, str] | None:
            read, watcher = None, cast("Watcher", lines)
            if isinstance(starter, VllmStarter):
                starter.log, read = default_log(), devices.DeviceMeter().read
            sweeping = sweep(requests, starter, settings, book, watcher, read_device=read)
            try:
                execute(sweeping, starter, book)
            except TunerError as error:
                return str(error), error.hint
            return None

        done = pool.submit(work)
        while not done.done():
            wait([done], timeout=LOOK_S)
            new, lines.new = lines.new, ()
            yield News(_read(folder, sizes), new)
        yield News(_read(folder, sizes), lines.new, done.result())


class _Lines:
    """Keeps the lines that a watcher shows, and nothing that comes too often to travel."""

    new: Sequence[tuple[str, str]] = ()

    def __getattr__(self, name: str) -> Callable[..., None]:
        def keep(text: object, *_: object) -> None:
            if name in {"stage", "warn"}:
                self.new = [*self.new, (name, str(text))]

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
    (folder / journal.REPLAYS).mkdir(mode=0o700, exist_ok=True)
    for name in sorted(files, key=journal.JOURNAL.__eq__):
        with (folder / name).open("ab") as file:
            file.write(files[name])
            file.flush()
            os.fsync(file.fileno())
