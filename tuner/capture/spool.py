"""A recording's file, written by its own thread: whoever records never waits for a disk.

Memory is bounded: what the thread cannot keep up with is counted and not kept. A row or a disk that
fails loses that row or what the disk did not take, is counted, and ends nothing.
"""

import atexit
import logging
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, Literal, TypeVar

import prometheus_client

from tuner.errors import UsageError
from tuner.system.printable import printable
from tuner.trace.record import Row, TraceHeader, header_line, row_line

log = logging.getLogger("vllm.tuner")
"""A child of vLLM's logger: its lines go where the server's own go, in their form."""

Item = TypeVar("Item")

Loss = Literal["writer_behind", "not_recorded", "not_written"]
"""Why a request is not in the recording: too many wait, it makes no row, the disk is full."""

LOST = prometheus_client.Counter(
    "tuner_requests_not_recorded", "Requests that tuner's recording lacks, by reason.", ["reason"]
)
"""At the server's own /metrics."""

MAX_PENDING = 20_000
"""Requests that may wait to be written."""

MAX_PENDING_TOKENS = 2**20
"""Prompt tokens that may wait to be hashed."""

BLOCK_SIZE = 16
"""Tokens that one prefix id stands for: vLLM's default block."""

WRITE_S = 0.2
"""Longest wait of a request until the operating system has its row."""

SLICE, BREATH_S = 32, 0.0001
"""Rows made in one go, and the pause of the thread after them. It really sleeps, so that the event
loop gets the GIL."""


def breathe() -> None:
    time.sleep(BREATH_S)


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a recording."""

    folder: Path
    max_bytes: int
    """Size of the file at which recording stops."""
    prefix_ids: bool
    key: bytes
    """Key of the hashes. It is in no file, and gone with the process unless the user set it."""


def settings_of(environment: Mapping[str, str]) -> Settings:
    """Read the options from the environment: a server's command line has no room for them.

    Raises UsageError for a value that cannot be used.
    """
    most_mb = environment.get("TUNER_TRACE_MAX_MB", "4096")
    if not re.fullmatch("[1-9][0-9]{0,8}", most_mb):
        raise UsageError(
            f"TUNER_TRACE_MAX_MB={most_mb[:40]}: not a whole number from 1 to 999999999",
            hint="Leave it out for 4096.",
        )
    key = environment.get("TUNER_TRACE_KEY", secrets.token_hex(32)).strip()
    if not re.fullmatch("([0-9a-fA-F]{2}){16,}", key):
        raise UsageError(
            "TUNER_TRACE_KEY: not 32 or more hexadecimal digits",
            hint="Make a key: export TUNER_TRACE_KEY=$(openssl rand -hex 32)",
        )
    return Settings(
        folder=Path(environment.get("TUNER_TRACE_OUT") or "tuner-trace"),
        max_bytes=int(most_mb) * 10**6,
        prefix_ids=environment.get("TUNER_TRACE_PREFIX_IDS") != "0",
        key=bytes.fromhex(key),
    )


RowOf = Callable[[Item, float, Settings], Row]
"""Makes the row of an item, given what the stamps count from in seconds."""


class Spool(Generic[Item]):
    """Takes items from the event loop and writes them as rows from its own thread."""

    def __init__(
        self, settings: Settings, header: Callable[[], TraceHeader], row_of: RowOf[Item]
    ) -> None:
        """Raise OSError where the folder cannot be written."""
        self.settings = settings
        self._origin_s = time.monotonic()
        self._began = datetime.now(UTC)
        """The same moment on the wall clock."""

        self._header, self._row_of = header, row_of
        self._pending: deque[tuple[Item, int]] = deque()
        self._tokens_in = self._tokens_out = 0
        """Prompt tokens handed over, and taken by the thread: each has one writer."""

        self._complaints: set[str] = set()
        """Reasons that the log holds, and that have not got better since."""

        self._wake = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._file: int | None = None
        self._size = 0
        settings.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(settings.folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "permission denied", str(settings.folder))

    def has_room_for(self, tokens: int) -> bool:
        """Return whether so many prompt tokens can wait to be hashed."""
        return self._tokens_in - self._tokens_out + tokens <= MAX_PENDING_TOKENS

    def put(self, item: Item, *, tokens: int = 0) -> None:
        """Hand over an item, of which ``tokens`` prompt tokens are kept. Never waits."""
        if self._is_closing or len(self._pending) >= MAX_PENDING:
            self.lose("not_written" if self._is_closing else "writer_behind")
            return
        self._tokens_in += tokens
        self._pending.append((item, tokens))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tuner-trace", daemon=True)
            self._thread.start()

    def lose(self, reason: Loss, rows: int = 1, problem: Exception | None = None) -> None:
        """Count requests that are not recorded; log the problem once until it is gone."""
        LOST.labels(reason).inc(rows)
        if reason not in self._complaints:
            self._complaints.add(reason)
            why = str(problem) if isinstance(problem, OSError) else repr(problem or reason)
            log.warning("tuner: a request is not recorded: %s", printable(why)[:200])

    def close(self) -> None:
        """Write what is left, and wait for it. Does nothing the second time."""
        self._is_closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(WRITE_S)
            self._drain()
        self._drain()
        if self._file is not None:
            os.close(self._file)

    def _drain(self) -> None:
        while self._pending:
            lines, rows = bytearray(), 0
            while self._pending and rows < SLICE:
                item, tokens = self._pending.popleft()
                try:
                    lines += row_line(self._row_of(item, self._origin_s, self.settings))
                    rows += 1
                except Exception as problem:  # noqa: BLE001 - whatever a client sent
                    self.lose("not_recorded", problem=problem)
                self._tokens_out += tokens
            try:
                self._write(lines)
                self._complaints.discard("not_written")
            except Exception as problem:  # noqa: BLE001 - a disk, or a model's odd name
                self.lose("not_written", rows, problem)
            breathe()

    def _write(self, lines: bytearray) -> None:
        """Append all of it, or nothing. Raises OSError."""
        if not lines:
            return
        if self._file is None:
            self._file = self._open()
        if self._size + len(lines) > self.settings.max_bytes:
            raise OSError("the file is as large as TUNER_TRACE_MAX_MB allows")
        try:
            _append(self._file, lines)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(lines)

    def _open(self) -> int:
        """Begin the file with its header. Raises OSError."""
        origin = self._began.isoformat(timespec="microseconds")
        path = self.settings.folder / f"trace-{self._began:%Y%m%dT%H%M%S.%fZ}-{os.getpid()}.jsonl"
        header = header_line(
            replace(
                self._header(),
                time_origin=origin,
                block_size=BLOCK_SIZE,
            )
        )
        # Only for its owner: lengths and times tell more than they seem to.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        try:
            _append(file, header)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        self._size = len(header)
        log.info("tuner: recording to %s", path)
        return file


def _append(file: int, data: bytes | bytearray) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def open_spool(header: Callable[[], TraceHeader], row_of: RowOf[Item]) -> Spool[Item] | None:
    """Return the spool that the environment describes; it is closed when the process ends.

    None, with a line in the log, where nothing can be recorded.
    """
    try:
        spool = Spool(settings_of(os.environ), header, row_of)
    except Exception as problem:  # noqa: BLE001 - the server has to start
        hint = getattr(problem, "hint", "Set TUNER_TRACE_OUT to a folder that can be written.")
        log.warning("tuner: nothing is recorded: %s; %s", problem, hint)
        return None
    atexit.register(spool.close)
    return spool
