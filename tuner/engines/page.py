"""The files that a measured engine's scheduler and tuner share: limits go in, the log comes out.

A folder holds a page of counters that both map into memory, an array of ITERATION and one of SERVED
that the scheduler appends to, and its description of its engine. So tuner sets limits and reads the
log of an engine in any process without asking it: the engine never waits.
"""

import mmap
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tuner.engines.seam import ITERATION, IterationLog, columns
from tuner.errors import EngineError
from tuner.system import files

VARIABLE = "TUNER_PAGE"
"""Names the folder to the engine's process."""

SOCKET = "TUNER_LIVE_SOCKET"
"""Names the socket of a deployed server's live control; no engine that is measured has one."""

PAGE = columns(
    max_num_seqs="i8",  # this and the next two: the scheduler takes them over
    max_num_batched_tokens="i8",
    resets="i8",  # how often the prefix cache was to be emptied
    resets_done="i8",  # by the scheduler, as all below
    unfinished="i8",  # requests that it has
    under_way="i8",  # iterations that were scheduled and are not done
    iterations="i8",  # that ended
)

SERVED = columns(
    number="i8",  # of the request's name: see ``name_of``
    queued_s="f8",
    scheduled_s="f8",
    first_s="f8",
    last_s="f8",
    cached_tokens="i8",
)
"""One request; times by the engine's monotonic clock, NaN for what did not come."""


class About(msgspec.Struct):
    """The engine as it runs."""

    arguments: dict[str, Any]
    """Some of its arguments by vLLM's names, as resolved."""

    kv_blocks: int
    unmodelled: list[str]
    """What it does and the model of vLLM's scheduler does not."""


def name_of(number: int) -> str:
    """Return the name of a request, for an engine or a server."""
    return f"tuner-{number}"


def mapped(folder: Path) -> NDArray[np.void]:
    """Map the page of a folder into memory: an array of one PAGE."""
    with (folder / "page").open("r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), PAGE.itemsize), PAGE)


class Page:
    """The folder as tuner has it."""

    def __init__(self, folder: Path) -> None:
        """Make the folder, in one that is tuner's own."""
        folder.mkdir(mode=0o700)
        (folder / "page").write_bytes(bytes(PAGE.itemsize))
        self._taken = {"iterations": 0, "served": 0}
        for name in self._taken:
            (folder / name).touch(mode=0o600)
        self.folder, self.socket = folder, folder / "api"
        """The second is where a server of this engine listens."""

        self._cells = mapped(folder)[0]

    def about(self) -> About:
        """Return the scheduler's description of its engine. Raises OSError where none started."""
        content = files.read_regular(self.folder / "about.json")
        return msgspec.json.decode(content, type=About)

    @property
    def is_idle(self) -> bool:
        return not (self._cells["unfinished"] or self._cells["under_way"])

    @property
    def iterations(self) -> int:
        """Return how many iterations have ended since the start."""
        return int(self._cells["iterations"])

    def set(self, max_num_seqs: int | None, max_num_batched_tokens: int | None) -> None:
        """Set limits of an idle engine and empty its prefix cache, before its next request. None
        leaves a limit as it is."""
        cells = self._cells
        cells["max_num_seqs"] = max_num_seqs or cells["max_num_seqs"]
        cells["max_num_batched_tokens"] = max_num_batched_tokens or cells["max_num_batched_tokens"]
        cells["resets"] += 1

    def take(self) -> tuple[IterationLog, NDArray[np.void]]:
        """Return the iterations and the served requests since the last call.

        Raises EngineError for a log that began with a full prefix cache.
        """
        log, served = self._rows("iterations", ITERATION), self._rows("served", SERVED)
        if len(log) and self._cells["resets"] != self._cells["resets_done"]:
            raise EngineError(
                "the prefix cache was not emptied: its blocks are in use",
                hint="Let the requests drain first.",
            )
        return log, served

    def _rows(self, name: str, dtype: np.dtype[np.void]) -> NDArray[np.void]:
        rows = np.fromfile(self.folder / name, dtype, offset=self._taken[name] * dtype.itemsize)
        self._taken[name] += len(rows)
        return rows

    def remove(self) -> None:
        """Delete the folder. Twice is allowed."""
        shutil.rmtree(self.folder, ignore_errors=True)
