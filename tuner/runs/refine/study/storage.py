"""The storage of a study: a file of Optuna's journal, or any storage that a URL names."""

import json
import os
import random
import socket
import time
import urllib.parse
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from sqlalchemy import create_engine, text
from sqlalchemy.exc import (
    IntegrityError,
    OperationalError,
    PendingRollbackError,
    ProgrammingError,
)

from tuner.errors import RunError
from tuner.system.files import opened_own
from tuner.system.lock import lock
from tuner.system.passwords import passwords_in, without_passwords

STORAGE_TIMEOUT_S = 10
"""How long a storage may take to answer, or be locked by others, before it counts as down."""

MOST_AT_ONCE, PAUSE_S = 5, 1.0
"""How often a database that others fill with tables is opened again, and the longest wait."""


LONGEST_SAID = 200
"""Characters of a storage's own words that are shown."""

LONGEST_LINE = 1 << 24
"""Bytes that no line of Optuna's journal takes: what is longer is not read to its end."""

_POSTGRESQL = "pip install 'tuner[postgresql]'"
_DRIVERS = {
    "postgresql": _POSTGRESQL,
    "postgres": _POSTGRESQL,
    "mysql": "pip install mysqlclient, or name its driver, as in mysql+pymysql://…",
}


class Connections:
    """The connections that were made to a database, to be cut while another thread waits for what
    comes."""

    def __init__(self) -> None:
        self._made: list[Any] = []

    def add(self, connection: object, _: object) -> None:
        """Keep a connection, of which SQLAlchemy tells."""
        self._made.append(connection)

    def cut(self) -> None:
        """Let nothing more come through them."""
        for one in self._made:
            with (
                suppress(Exception),  # it is closed, or none of sockets
                socket.socket(fileno=os.dup(one.fileno())) as wire,
            ):
                wire.shutdown(socket.SHUT_RDWR)


def opened(storage: str, connections: Connections | None = None) -> BaseStorage:
    """Return the storage of a URL; anything else is a file of Optuna's journal.

    Raises RunError where there is none, and for Redis: what its server sends, Optuna unpickles.
    """
    with asking(storage), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is experimental is Optuna's affair
        if storage.partition(":")[0].lower() in {"redis", "rediss"} and "://" in storage:
            raise RunError(
                f"{without_passwords(storage)}: is not used: Optuna runs what a Redis server sends",
                hint="Share a study in PostgreSQL: --storage postgresql://….",
            )
        if "://" in storage:
            return _database(storage, connections or Connections())
        return _file(Path(storage))


def _file(path: Path) -> JournalStorage:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():  # Optuna would write to whatever it leads to
        raise _unusable(str(path), "is a link")
    if path.exists() and not path.is_file():  # a device would be read for ever
        raise _unusable(str(path), "is no regular file")
    os.close(opened_own(path, os.O_RDWR | os.O_CREAT))  # Optuna would let others read it
    _check_journal(path)
    try:
        return JournalStorage(JournalFileBackend(str(path), _FileLock(path)))
    except (AssertionError, LookupError, TypeError, ValueError):
        raise _no_journal(path) from None


def _check_journal(path: Path) -> None:
    """Raise RunError for a file of something else: Optuna would write into it.

    A last line that a full disk or a power cut left unfinished is dropped, as Optuna would go on
    writing in it.
    """
    whole_bytes = 0
    with _locked(path) as file:
        for line in iter(partial(file.readline, LONGEST_LINE), b""):
            if not line.endswith(b"\n") and whole_bytes > 0 and len(line) < LONGEST_LINE:
                file.truncate(whole_bytes)
                return
            if not _is_operation(line):
                raise _no_journal(path)
            whole_bytes += len(line)


def _is_operation(line: bytes) -> bool:
    try:
        one = json.loads(line)
    except (ValueError, RecursionError):
        return False
    is_whole = line.endswith(b"\n")
    return is_whole and isinstance(one, dict) and {"op_code", "worker_id"} <= one.keys()


def _no_journal(path: Path) -> RunError:
    return RunError(
        f"{path}: is no study of Optuna's journal",
        hint="Name the file of a study, or one that is not there yet.",
    )


class _FileLock(JournalFileOpenLock):
    """A lock that the system lets go when its process ends, however it ends: Optuna's own are files
    and links, which a process that is killed leaves behind."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path, self._held = path, ExitStack()

    def acquire(self) -> bool:
        self._held.enter_context(_locked(self._path))
        return True

    def release(self) -> None:
        self._held.close()


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """Hold a file for this process alone. Raises RunError when others do not let go."""
    with open(path, "a+b", opener=opened_own) as file:
        if not lock(file.fileno(), wait_s=STORAGE_TIMEOUT_S):
            raise RunError(
                f"{path}: another process has locked it for more than {STORAGE_TIMEOUT_S}s",
                hint="Wait for it, end it, or give another --storage.",
            )
        file.seek(0)
        yield file


def _database(storage: str, connections: Connections) -> RDBStorage:
    """Open a database. Of runs that make its tables at the same moment all but one fail, and find
    them there when they look again."""
    if storage.startswith("sqlite"):
        _check_schema(storage)
    how = {**_engine(storage), "pool_events": [(connections.add, "connect")]}
    for _ in range(MOST_AT_ONCE):
        try:
            return RDBStorage(_with_driver(storage), engine_kwargs=how)
        except (IntegrityError, ProgrammingError, OperationalError) as error:
            is_down = isinstance(error, OperationalError)  # unless that is SQLite's or MySQL's word
            if is_down and "already exists" not in str(error):
                raise
            time.sleep(random.uniform(0.0, PAUSE_S))  # noqa: S311 - so that they meet no more
    return RDBStorage(_with_driver(storage), engine_kwargs=how)


def _check_schema(storage: str) -> None:
    """Raise RunError for a file of SQLite's that computes what it holds.

    Optuna makes no view, no trigger and no computed column, and one without end would be read, and
    kept in memory, for ever.
    """
    engine = create_engine(storage, connect_args=_engine(storage)["connect_args"])
    try:
        with engine.connect() as connection:
            odd = (
                "SELECT 1 FROM sqlite_master AS one WHERE type IN ('view', 'trigger') OR EXISTS "
                "(SELECT 1 FROM pragma_table_xinfo(one.name) WHERE hidden != 0)"
            )
            found = connection.execute(text(odd)).first()
    finally:
        engine.dispose()
    if found is not None:
        raise _unusable(storage, "it has views, triggers or computed columns, as no study has")


def closed(storage: BaseStorage) -> None:
    """Let go of a database's connections."""
    if isinstance(storage, RDBStorage):
        storage.remove_session()
        storage.engine.dispose()


@contextmanager
def asking(storage: str) -> Iterator[None]:
    """Turn whatever a storage or its driver raises into one line, without the password."""
    try:
        yield
    except RunError:
        raise
    except ImportError as error:
        kind, named, driver = storage.partition(":")[0].partition("+")
        usual = _DRIVERS.get(kind, "see its name in the URL")
        raise RunError(
            f"{without_passwords(storage)}: its driver is missing ({_said(error, storage)})",
            hint=f"Install {driver}, or leave +{driver} out." if named else f"Install it: {usual}.",
        ) from error
    except Exception as error:  # drivers raise what they like
        raise _unusable(storage, _said(error, storage)) from error


def _unusable(storage: str, why: str) -> RunError:
    return RunError(
        f"{without_passwords(storage)}: the study's storage cannot be used ({why})",
        hint="Bring it up or give another --storage; with --resume nothing is measured twice.",
    )


def _said(error: Exception, storage: str) -> str:
    """Return the first line of what a driver says, and nothing of what is secret."""
    if isinstance(error, PendingRollbackError):  # says what a program did that it should not have
        return "the connection is lost"
    while isinstance(error.__cause__, Exception):  # Optuna and SQLAlchemy say less than it did
        error = error.__cause__
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    for secret in passwords_in(storage):
        said = said.replace(secret, "…")
    return said if len(said) <= LONGEST_SAID else f"{said[:LONGEST_SAID]}…"


def _with_driver(storage: str) -> str:
    """Name the driver that our extra installs: which one SQLAlchemy prefers has changed."""
    scheme, _, rest = storage.partition("://")
    plain = scheme in {"postgres", "postgresql"}
    return f"postgresql+psycopg://{rest}" if plain else storage


def _engine(storage: str) -> dict[str, Any]:
    """Return how connections are made: none waits for ever."""
    kind = storage.partition(":")[0].partition("+")[0]
    found: dict[str, Any] = {"connect_timeout": STORAGE_TIMEOUT_S}
    if kind == "sqlite":
        found = {"timeout": STORAGE_TIMEOUT_S}
    elif kind in {"postgres", "postgresql"}:
        own = urllib.parse.parse_qs(urllib.parse.urlsplit(storage).query).get("options", [""])[-1]
        found["options"] = (
            f"-c lock_timeout={STORAGE_TIMEOUT_S}s "
            f"-c statement_timeout={STORAGE_TIMEOUT_S}s {own}".rstrip()
        )
        found["tcp_user_timeout"] = STORAGE_TIMEOUT_S * 1000
    elif kind != "mysql":
        found = {}
    return {"pool_pre_ping": True, "connect_args": found}
