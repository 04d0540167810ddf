"""A recording's files, written by a thread of their own: whoever records never waits for a disk.

Memory is bounded: what the thread cannot keep up with is counted and not kept. A failure of a row
or a disk loses that row or what the disk did not take, is counted, and ends nothing.
"""

import atexit
import fcntl
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, Literal, TypeVar

import prometheus_client

from tuner.capture.environment import Recording, recording
from tuner.errors import TunerError
from tuner.system.contain_errors import contain_errors
from tuner.system.printable import printable
from tuner.trace.formats.reading.header import TraceHeader, header_line, row_line
from tuner.trace.formats.reading.record import Row

# A child of vLLM's logger: it speaks where the server's own lines go, in their form.
log = logging.getLogger("vllm.tuner")

Item = TypeVar("Item")

Loss = Literal["writer_behind", "not_recorded", "not_written"]
"""Reasons for a request not to be in the recording: too many wait, it makes no row, the disk does
not take it."""

LOSSES: tuple[Loss, ...] = ("writer_behind", "not_recorded", "not_written")
LOST = prometheus_client.Counter(
    "tuner_requests_not_recorded", "Requests that tuner's recording lacks, by reason.", ["reason"]
)
"""At the server's own /metrics."""

MAX_PENDING = 20_000
"""Requests that may wait to be written."""

MAX_PENDING_TOKENS = 2**20
"""Prompt tokens that may wait to be hashed."""

HEADER_BYTES = 1024
"""Kept free for the header, so that the counts can be entered at the end."""

WRITE_S = 0.2
SYNC_S = 5.0
"""Longest wait of a request until the system has it, and until the disk has it."""

SLICE, SLICE_BYTES = 32, 2**16
BREATH_S = 0.0001
"""Pause of the thread after SLICE rows or SLICE_BYTES. It really sleeps, so that the event loop
gets the GIL."""


def breathe() -> None:
    time.sleep(BREATH_S)


class Spool(Generic[Item]):
    """Takes items from the event loop, and writes them as rows from its own thread."""

    def __init__(
        self,
        recording: Recording,
        *,
        name: str,
        header: Callable[[], TraceHeader],
        row_of: Callable[[Item], Row],
    ) -> None:
        """Raise OSError where the folder cannot be written."""
        self.recording = recording
        self.origin_s = time.monotonic()
        """What the stamps count from, on the monotonic clock."""

        self.began = datetime.now(UTC)
        """The same moment on the wall clock."""

        self._header, self._row_of = header, row_of
        self._stem = f"{name}-{self.began:%Y%m%dT%H%M%S.%fZ}-{os.getpid()}"
        self._pending: deque[tuple[Item, int]] = deque()
        self._tokens_in = self._tokens_out = 0  # each is changed by one thread only
        self._lost_before: Counter[str] = Counter()
        """Counted by those who hand over."""

        self._lost_in_writing: Counter[str] = Counter()
        self._lost_told: Counter[str] = Counter()
        self._unhashed = 0
        self._complained: set[str] = set()
        """What the log was told, and has not got better since."""

        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._parts: list[_Part] = []
        recording.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(recording.folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "permission denied", str(recording.folder))
        for reason in LOSSES:
            LOST.labels(reason)

    @property
    def waiting(self) -> int:
        """Items that the thread has not taken yet."""
        return len(self._pending)

    def path(self, number: int) -> Path:
        return self.recording.folder / f"{self._stem}-{number:04d}.jsonl"

    def has_room_for(self, tokens: int) -> bool:
        """Whether so many prompt tokens can be kept until they are hashed; counts a no."""
        if self._tokens_in - self._tokens_out + tokens <= MAX_PENDING_TOKENS:
            return True
        self._unhashed += 1
        return False

    def put(self, item: Item, *, tokens: int = 0) -> None:
        """Hand over an item, of which ``tokens`` prompt tokens are kept. Never waits."""
        if self._closing:
            return
        if len(self._pending) >= MAX_PENDING:
            self.lacks("writer_behind")
            return
        self._tokens_in += tokens
        self._pending.append((item, tokens))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tuner-trace", daemon=True)
            self._thread.start()

    def lacks(self, reason: Loss, problem: Exception | None = None) -> None:
        """Count a request that whoever records could not hand over, and why."""
        self._count(self._lost_before, reason, 1, problem)

    def _count(
        self, lost: Counter[str], reason: Loss, rows: int, problem: Exception | None
    ) -> None:
        lost[reason] += rows
        LOST.labels(reason).inc(rows)
        if problem is not None and reason not in self._complained:
            self._complained.add(reason)
            said = str(problem) if isinstance(problem, OSError) else repr(problem)
            log.warning("tuner: a request is not recorded: %s", printable(said)[:200])

    def close(self) -> None:
        """Write what is left, and wait for it. Does nothing the second time."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(WRITE_S)
            self._drain()
        self._drain()
        if self._parts:
            contain_errors(self._fails, self._finish, self._parts[-1])

    def _drain(self) -> None:
        while self._pending:
            lines, rows = self._lines()
            if rows and contain_errors(self._fails, self._write, lines, rows) is None:
                self._count(self._lost_in_writing, "not_written", rows, None)
            breathe()
        if self._parts:
            contain_errors(self._fails, self._parts[-1].sync, every_s=SYNC_S)

    def _lines(self) -> tuple[bytearray, int]:
        """Return the next rows as lines, and their number; those that fail are counted."""
        lines = bytearray()
        rows = 0
        for _ in range(SLICE):
            if not self._pending or len(lines) >= SLICE_BYTES:
                break
            item, tokens = self._pending.popleft()
            self._tokens_out += tokens
            try:
                lines += row_line(self._row_of(item))
            except Exception as problem:  # noqa: BLE001 - whatever a client sent
                self._count(self._lost_in_writing, "not_recorded", 1, problem)
            else:
                rows += 1
        return lines, rows

    def _write(self, lines: bytearray, rows: int) -> bool:
        self._part(len(lines)).write(lines, rows)
        self._complained.discard("not_written")
        return True

    def _fails(self, problem: Exception) -> None:
        """Say once that the disk does not take what is written, until it does again."""
        self._count(self._lost_in_writing, "not_written", 0, problem)

    def _part(self, coming: int) -> "_Part":
        """Return the file to write to: the next one where the last is full. That stays open
        until the next is there."""
        last = self._parts[-1] if self._parts else None
        if last is not None and last.size + coming <= self.recording.max_bytes:
            return last
        self._keep(max(1, self.recording.max_files - 1))
        number = 0 if last is None else last.number + 1
        part = _Part(self.path(number), number, self._full_header())
        self._parts.append(part)
        log.info("tuner: recording to %s", part.path)
        if last is not None:
            contain_errors(self._fails, self._finish, last)
        self._keep(self.recording.max_files)
        return part

    def _keep(self, files: int) -> None:
        while len(self._parts) > files:
            self._parts.pop(0).path.unlink(missing_ok=True)

    def _finish(self, part: "_Part") -> None:
        """Enter the counts into the header and let go of the file."""
        header = self._full_header()
        lost = self._lost_before + self._lost_in_writing
        dropped = dict(lost - self._lost_told)
        self._lost_told = lost
        notes = header.notes
        if self._unhashed:
            notes = (*notes, f"{self._unhashed} requests without hash_ids: the writer was behind")
            self._unhashed = 0
        part.finish(
            replace(
                header,
                rows_read=part.rows + sum(dropped.values()),
                rows_kept=part.rows,
                dropped=dropped,
                notes=notes,
            )
        )

    def _full_header(self) -> TraceHeader:
        return replace(
            self._header(),
            time_origin=self.began.isoformat(timespec="microseconds"),
            time_resolution_ms=0.001,
            block_size=self.recording.block_size,
        )


def spool_asked_for(
    *,
    out: str,
    default: str | None,
    name: str,
    header: Callable[[], TraceHeader],
    row_of: Callable[[Item], Row],
) -> Spool[Item] | None:
    """Return the spool that the environment asks for, which is closed when the process ends.

    None where it asks for none; where nothing can be recorded the log says why.
    """
    try:
        asked = recording(os.environ, out=out, default=default)
        if asked is None:
            return None
        spool = Spool(asked, name=name, header=header, row_of=row_of)
    except TunerError as problem:
        log.warning("tuner: nothing is recorded: %s; %s", problem, problem.hint)
        return None
    except OSError as problem:
        log.warning("tuner: nothing is recorded: %s", problem)
        return None
    atexit.register(spool.close)
    return spool


class _Part:
    """One file of a recording, which is only appended to until its header gets the counts."""

    def __init__(self, path: Path, number: int, header: TraceHeader) -> None:
        self.path, self.number = path, number
        self.rows = 0
        self.size = HEADER_BYTES
        # Only for its owner: lengths and times tell more than they seem to.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._synced_s = time.monotonic()
        self._dirty = True
        try:
            self._append(_padded(header))
        except OSError:
            os.close(self._file)
            path.unlink()
            raise

    def write(self, lines: bytes | bytearray, rows: int) -> None:
        """Write all of it, or nothing. Raises OSError."""
        try:
            self._append(lines)
        except OSError:
            os.ftruncate(self._file, self.size)
            raise
        self.rows += rows
        self.size += len(lines)
        self._dirty = True

    def sync(self, *, every_s: float) -> None:
        if self._dirty and time.monotonic() - self._synced_s >= every_s:
            os.fsync(self._file)
            self._synced_s = time.monotonic()
            self._dirty = False

    def finish(self, header: TraceHeader) -> None:
        """Enter the counts: into the file that was written, whatever has its name by now."""
        try:
            self.sync(every_s=0)
            fcntl.fcntl(self._file, fcntl.F_SETFL, 0)  # no longer at the end alone
            os.pwrite(self._file, _padded(header), 0)
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def _append(self, data: bytes | bytearray) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._file, left) :]


def _padded(header: TraceHeader) -> bytes:
    line = header_line(header)
    if len(line) > HEADER_BYTES:  # a model's name may be a long path
        line = header_line(replace(header, model=None))
    return line[:-1].ljust(HEADER_BYTES - 1) + b"\n"
