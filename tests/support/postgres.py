"""Debian's PostgreSQL on a socket of its own, for tests; skips where there is none to start."""

import os
import pwd
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

BIN = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    control: Callable[[str], None]
    """Starts and stops it."""

    send: Callable[[signal.Signals], None]
    """Sends a signal to every process of it."""


@contextmanager
def running() -> Iterator[Server]:
    pytest.importorskip("psycopg")
    if BIN is None:
        pytest.skip("PostgreSQL is not installed")
    owner: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tuner-pg-") as name:
        folder, control = Path(name), BIN / "pg_ctl"
        if os.getuid() == 0:  # it refuses to run as root
            try:
                account = pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("no account that PostgreSQL may run as")
            os.chown(folder, account.pw_uid, account.pw_gid)
            owner = {"user": account.pw_uid, "group": account.pw_gid}

        def run(*words: str) -> None:
            subprocess.run(words, stdout=subprocess.DEVNULL, cwd=folder, check=True, **owner)

        data = str(folder / "data")
        run(str(BIN / "initdb"), "-D", data, "-A", "trust", "-U", "tuner", "--no-sync")
        flags = f"-k {folder} -c listen_addresses='' -c fsync=off"
        log = str(folder / "log")
        words = {
            "start": ("-o", flags, "-l", log, "-w", "start"), "stop": ("-m", "immediate", "stop")
        }  # fmt: skip

        def ask(what: str) -> None:
            run(str(control), "-D", data, *words[what])

        def send(what: signal.Signals) -> None:
            first = psutil.Process(int((folder / "data" / "postmaster.pid").read_text().split()[0]))
            for process in (first, *first.children()):
                process.send_signal(what)

        ask("start")
        try:
            yield Server(f"postgresql://tuner:secret@/postgres?host={folder}", ask, send)
        finally:
            ask("stop")
