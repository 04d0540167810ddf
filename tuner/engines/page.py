"""The files that a measured engine's scheduler and tuner share: limits go in, the log comes out.

A folder holds a page of counters that both map into memory, an array of ITERATION and one of SERVED
that the scheduler appends to, and what the scheduler says of itself. So tuner sets limits and reads
the log of an engine in any process, without a question to it: the engine never waits.
"""

# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import math
import mmap
import os
import re
import struct
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tuner.engines.seam import ITERATION, UNKNOWN, IterationLog
from tuner.errors import EngineError
from tuner.system import files

VARIABLE = "TUNER_PAGE"
"""Names the folder to the engine's process."""

SOCKET = "TUNER_LIVE_SOCKET"
"""Names the socket of a deployed server's live control; no engine that is measured has one."""

PAGE = np.dtype(
    [
        ("max_num_seqs", "i8"),  # this and the next two: by tuner, taken over before each schedule
        ("max_num_batched_tokens", "i8"),
        ("resets", "i8"),  # how often the prefix cache was to be emptied
        ("resets_done", "i8"),  # by the scheduler, as all below
        ("unfinished", "i8"),  # requests that it has
        ("under_way", "i8"),  # iterations that were scheduled and are not done
        ("iterations", "i8"),  # that ended
        ("lost", "i8"),  # rows that could not be written
    ]
)

SERVED = np.dtype(
    [
        ("number", "i8"),  # of the request's name: see ``name_of``
        ("queued_s", "f8"),
        ("scheduled_s", "f8"),
        ("first_s", "f8"),
        ("last_s", "f8"),
        ("cached_tokens", "i8"),
        ("preemptions", "i8"),
    ]
)
"""When the engine had one request; by its monotonic clock, NaN for what did not come."""

_NAME = re.compile(r"(?:cmpl-)?tuner-(\d{1,18})(?!\d)")


class About(msgspec.Struct):
    """The engine as it runs."""

    arguments: dict[str, Any]
    """Some of its arguments by vLLM's names, as resolved."""

    kv_blocks: int
    unmodelled: list[str]
    """What it does that the model of vLLM's scheduler does not."""

    cautions: list[str]
    """What it can do and no replay asks for."""


def name_of(number: int) -> str:
    """Return what a request is called, to the engine or to a server."""
    return f"tuner-{number}"


def _cells(folder: Path) -> dict[str, NDArray[np.int64]]:
    """Map the page; return name → its number, as an array of one."""
    with (folder / "page").open("r+b") as file:
        page = np.frombuffer(mmap.mmap(file.fileno(), PAGE.itemsize), PAGE)
    return {name: page[name] for name in PAGE.names or ()}


def _packer(dtype: np.dtype[np.void]) -> struct.Struct:
    codes = {"f8": "d", "i4": "i", "i8": "q"}
    return struct.Struct("<" + "".join(codes[dtype[name].str[1:]] for name in dtype.names or ()))


_ROW, _SERVED = _packer(ITERATION), _packer(SERVED)


class Page:
    """The folder as tuner has it."""

    def __init__(self, folder: Path) -> None:
        """Make the folder, in one that is tuner's own."""
        folder.mkdir(mode=0o700)
        (folder / "page").write_bytes(bytes(PAGE.itemsize))
        self.folder = folder
        self._cells = _cells(folder)
        self._taken = {"iterations": 0, "served": 0}

    def about(self) -> About:
        """Return what the scheduler says of its engine. Raises OSError where it did not start."""
        content = files.read_regular(self.folder / "about.json")
        return msgspec.json.decode(content, type=About)

    @property
    def is_idle(self) -> bool:
        return not (self._cells["unfinished"][0] or self._cells["under_way"][0])

    @property
    def iterations(self) -> int:
        """Return how many iterations have ended since the start."""
        return int(self._cells["iterations"][0])

    def set(self, max_num_seqs: int | None, max_num_batched_tokens: int | None) -> None:
        """Set limits of an idle engine and empty its prefix cache, before its next request. None
        leaves a limit as it is."""
        self._cells["max_num_seqs"][0] = max_num_seqs or self._cells["max_num_seqs"][0]
        tokens = max_num_batched_tokens or self._cells["max_num_batched_tokens"][0]
        self._cells["max_num_batched_tokens"][0] = tokens
        self._cells["resets"][0] += 1

    def take(self) -> tuple[IterationLog, NDArray[np.void]]:
        """Return the iterations and the served requests since the last call.

        Raises EngineError where the log has gaps, or was begun with a full prefix cache.
        """
        log, served = self._rows("iterations", ITERATION), self._rows("served", SERVED)
        if self._cells["lost"][0]:
            raise EngineError(
                "the engine lost a part of its log", hint="Make room in the temporary folder."
            )
        if len(log) and self._cells["resets"][0] != self._cells["resets_done"][0]:
            raise EngineError(
                "the prefix cache was not emptied: its blocks are in use",
                hint="Let the requests drain first.",
            )
        return log, served

    def _rows(self, name: str, dtype: np.dtype[np.void]) -> NDArray[np.void]:
        path = self.folder / name
        whole = path.stat().st_size // dtype.itemsize if path.exists() else 0
        count, begin = whole - self._taken[name], self._taken[name] * dtype.itemsize
        self._taken[name] = whole
        if not count:
            return np.zeros(0, dtype)
        return np.fromfile(path, dtype, count, offset=begin)

    def remove(self) -> None:
        """Delete the folder, whatever is in it."""
        for name in ("page", "iterations", "served", "about.json"):
            (self.folder / name).unlink(missing_ok=True)
        if self.folder.exists():
            self.folder.rmdir()


@dataclass(slots=True)
class _Mark:
    """The progress of one request."""

    queued_s: float
    scheduled_s: float = math.nan
    first_s: float = math.nan
    cached_tokens: int = UNKNOWN
    preemptions: int = 0


class SchedulerLog:
    """The folder as the scheduler has it: one row an iteration, one a finished request.

    A row's time runs from the moment the previous iteration's tokens were out, or, after idling,
    from the moment the scheduler began, until this iteration's tokens are out. So the rows tile
    the busy time, also where one iteration is scheduled while another runs (async scheduling).
    """

    def __init__(self, scheduler: Any, folder: Path, about: About) -> None:
        self._scheduler = scheduler
        self._cells = _cells(folder)
        self._files = {
            name: os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            for name in ("iterations", "served")
        }
        self._pending: deque[tuple[Any, float, tuple[int, ...]]] = deque()
        self._busy_since: float | None = None
        self._preempted = self._lost_tokens = 0
        self._marks: dict[str, _Mark] = {}
        (folder / "about.json").write_bytes(msgspec.json.encode(about))

    def limits(self) -> tuple[int, int]:
        """Return the sequences and tokens that tuner has set; 0 before it did. Empty the prefix
        cache where that is wanted."""
        cells = self._cells
        wanted = cells["resets"][0]
        if wanted > cells["resets_done"][0] and self._scheduler.reset_prefix_cache():
            cells["resets_done"][0] = wanted
        return int(cells["max_num_seqs"][0]), int(cells["max_num_batched_tokens"][0])

    def queued(self, request: Any) -> None:
        self._marks[request.request_id] = _Mark(time.monotonic())
        self._cells["unfinished"][0] += 1

    def preempted(self, request: Any) -> None:
        self._preempted += 1
        self._lost_tokens += request.num_computed_tokens
        if (mark := self._marks.get(request.request_id)) is not None:
            mark.preemptions += 1

    def scheduled(self, output: Any, begun_s: float) -> None:
        """Note an iteration that is about to run."""
        self._cells["under_way"][0] += 1
        self._pending.append((output, begun_s, self._composition(output)))
        self._preempted = self._lost_tokens = 0
        for new in output.scheduled_new_reqs:
            mark = self._marks.get(new.req_id)
            if mark is not None and math.isnan(mark.scheduled_s):
                mark.scheduled_s, mark.cached_tokens = begun_s, new.num_computed_tokens

    def computed(self, output: Any, result: Mapping[int, Any]) -> None:
        """Note that an iteration's tokens are out; ``result`` is what goes to the clients."""
        now_s = time.monotonic()
        if self._pending and self._pending[0][0] is output:
            _, begun_s, composition = self._pending.popleft()
            start_s = begun_s if self._busy_since is None else self._busy_since
            self._write("iterations", _ROW.pack(start_s, now_s - start_s, *composition))
            self._busy_since = now_s
            self._cells["iterations"][0] += 1
            self._cells["under_way"][0] -= 1
        for outputs in result.values():
            for one in outputs.outputs:
                mark = self._marks.get(one.request_id)
                if mark is None:
                    continue
                if one.prefill_stats is not None:
                    mark.first_s = now_s
                if one.finish_reason is not None:
                    self.ended(one.request_id, now_s)
        self.counted()

    def ended(self, request_id: str, last_s: float = math.nan) -> None:
        """Note that a request is finished or, without its last token, aborted."""
        mark = self._marks.pop(request_id, None)
        name = _NAME.match(request_id)
        if mark is not None:
            number = int(name[1]) if name else UNKNOWN
            times = (mark.queued_s, mark.scheduled_s, mark.first_s, last_s)
            row = _SERVED.pack(number, *times, mark.cached_tokens, mark.preemptions)
            self._write("served", row)

    def counted(self) -> None:
        """Tell tuner how many requests there are."""
        left = sum(self._scheduler.get_request_counts())
        self._cells["unfinished"][0] = left
        if not left and not self._pending:
            self._busy_since = None

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)

    def _write(self, name: str, row: bytes) -> None:
        try:
            whole = os.write(self._files[name], row) == len(row)
        except OSError:
            whole = False
        self._cells["lost"][0] += not whole

    def _composition(self, output: Any) -> tuple[int, ...]:
        """Return a row's fields from ``decode_seqs`` on.

        A sequence decodes when all tokens that it had were computed already and only the newest
        one (and drafts of the next ones) goes in. Everything else is prefill: prompts, and what a
        preempted sequence computes again.
        """
        decode = context = prefill = prefill_tokens = prefill_context = 0
        scheduler = self._scheduler
        requests, drafts = scheduler.requests, output.scheduled_spec_decode_tokens
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = requests[request_id]
            before = request.num_computed_tokens - tokens
            if (
                (tokens == 1 or tokens == 1 + len(drafts.get(request_id, ())))
                and before >= request.num_prompt_tokens
                and not request.is_prefill_chunk
            ):
                decode += 1
                context += before
            else:
                prefill += 1
                prefill_tokens += tokens
                prefill_context += tokens * before
        cached = sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
        again = output.scheduled_cached_reqs
        cached += sum(
            computed
            for request_id, computed in zip(again.req_ids, again.num_computed_tokens, strict=True)
            if request_id in again.resumed_req_ids
        )
        running, waiting = scheduler.get_request_counts()
        pool = scheduler.kv_cache_manager.block_pool
        used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()  # one block is the null block
        return (
            *(decode, prefill, prefill_tokens, context, running, waiting, used),
            *(self._preempted, self._lost_tokens, cached, prefill_context),
        )
