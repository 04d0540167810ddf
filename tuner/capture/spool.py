"""A recording's file, written by its own thread: whoever records never waits for a disk.

Memory is bounded: what the thread cannot keep up with is counted and not kept. A row or a disk that
fails loses that row or what the disk did not take, is counted, and ends nothing.
"""

import logging
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import prometheus_client

from tuner.errors import UsageError
from tuner.system.printable import printable
from tuner.trace.record import Row, TraceHeader, header_line, row_line

log = logging.getLogger("vllm.tuner")
"""A child of vLLM's logger: its lines go where the server's own go, in their form."""

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

WRITE_S = 0.2
"""Longest wait of a request until the operating system has its row."""

SLICE, BREATH_S = 32, 0.0001
"""Rows made in one go, and the pause of the thread after them. It really sleeps, so that the event
loop gets the GIL."""


def breathe() -> None:
    time.sleep(BREATH_S)


class Spool:
    """Takes functions that make rows from the event loop, and writes the rows from its thread."""

    def __init__(self, environment: Mapping[str, str], header: Callable[[], TraceHeader]) -> None:
        """Read the settings from the environment: a server's command line has no room for them.

        Raises UsageError for a value that cannot be used, OSError where the folder cannot be
        written.
        """

        key = environment.get("TUNER_TRACE_KEY") or secrets.token_hex(32)
        most_mb = environment.get("TUNER_TRACE_MAX_MB") or "4096"
        if not re.fullmatch("([0-9a-fA-F]{2}){16,}", key) or not re.fullmatch(
            "[0-9]{1,9}", most_mb
        ):
            what = "TUNER_TRACE_KEY is not 32 or more hexadecimal digits, or "
            raise UsageError(
                f"{what}TUNER_TRACE_MAX_MB is not a whole number",
                hint="Leave them out for the defaults.",
            )
        self.key = bytes.fromhex(key)
        """Of the hashes. It is in no file, and gone with the process unless the user set it."""

        self._max_bytes = int(most_mb) * 10**6
        self.keeps_prefixes = environment.get("TUNER_TRACE_PREFIX_IDS") != "0"
        self.origin_s, began = time.monotonic(), datetime.now(UTC)
        """One moment on two clocks: stamps count from it."""

        folder = Path(environment.get("TUNER_TRACE_OUT") or "tuner-trace")
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "permission denied", str(folder))
        self._path = folder / f"trace-{began:%Y%m%dT%H%M%S.%fZ}-{os.getpid()}.jsonl"
        self._began, self._header = began.isoformat(timespec="microseconds"), header
        self._pending: deque[tuple[Callable[[], Row], int]] = deque()
        self._tokens_in = self._tokens_out = 0
        """Prompt tokens handed over, and taken by the thread: each has one writer."""

        self._logged: set[Loss] = set()
        self._thread: threading.Thread | None = None
        self._file: int | None = None
        self._size = 0

    def has_room_for(self, tokens: int) -> bool:
        """Return whether so many prompt tokens can wait to be hashed."""
        waiting = self._tokens_in - self._tokens_out
        return self.keeps_prefixes and waiting + tokens <= MAX_PENDING_TOKENS

    def put(self, make_row: Callable[[], Row], *, tokens: int = 0) -> None:
        """Hand over a row to be made of ``tokens`` prompt tokens. Never waits."""
        if len(self._pending) >= MAX_PENDING:
            self.lose("writer_behind")
            return
        self._tokens_in += tokens
        self._pending.append((make_row, tokens))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tuner-trace")
            self._thread.start()

    def lose(self, reason: Loss, rows: int = 1, problem: Exception | None = None) -> None:
        """Count requests that are not recorded; log the first of each reason."""
        LOST.labels(reason).inc(rows)
        if reason not in self._logged:
            self._logged.add(reason)
            why = str(problem) if isinstance(problem, OSError) else repr(problem or reason)
            log.warning("tuner: a request is not recorded: %s", printable(why)[:200])

    def _run(self) -> None:
        main = threading.main_thread()
        while main.is_alive():  # until the process ends, which waits for this thread
            main.join(WRITE_S)
            self._drain()

    def _drain(self) -> None:
        while self._pending:
            lines, rows = b"", 0
            while self._pending and rows < SLICE:
                make_row, tokens = self._pending.popleft()
                try:
                    lines += row_line(make_row())
                    rows += 1
                except Exception as problem:  # noqa: BLE001 - whatever a client sent
                    self.lose("not_recorded", problem=problem)
                self._tokens_out += tokens
            try:
                self._write(lines)
            except Exception as problem:  # noqa: BLE001 - a disk, or a model's odd name
                self.lose("not_written", rows, problem)
            breathe()

    def _write(self, lines: bytes) -> None:
        """Append all of it, or nothing. Raises OSError."""
        if self._file is None:
            # Only for its owner: lengths and times tell more than they seem to.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._file = os.open(self._path, flags, 0o600)
            log.info("tuner: recording to %s", self._path)
        if self._size == 0:
            lines = header_line(replace(self._header(), time_origin=self._began)) + lines
        if self._size + len(lines) > self._max_bytes:
            raise OSError("the file is as large as TUNER_TRACE_MAX_MB allows")
        if os.write(self._file, lines) < len(lines):
            os.ftruncate(self._file, self._size)
            raise OSError("the disk is full")
        self._size += len(lines)
