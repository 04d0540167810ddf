"""Compile numeric loops to machine code, and keep the code between runs."""

import errno
import hashlib
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from tuner.system.numba_config import refuse_config_of_folder

refuse_config_of_folder()

import numba  # noqa: E402 - which reads it
from numba.core.options import DefaultOptions  # noqa: E402

Function = TypeVar("Function", bound=Callable[..., object])

OLD_CACHES = 4
"""Caches of other sources and versions that stay: going back to one needs no compiling."""

_IN_PLACE = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
"""Numba's option not to count who holds an array; not every version has it (0.65 does)."""


def compiled(function: Function) -> Function:
    """Compile on the first call.

    The machine code is kept in the user's cache directory until a file in the function's folder
    changes; where that cannot be written, every process compiles anew.
    """
    return _compiled(function, {})


def compiled_in_place(function: Function) -> Function:
    """Compile in place: the function makes no array and only changes those that its caller holds.

    Counting who else holds an array, whenever one is looked at, takes more than half the time of a
    small loop. Here nobody counts.
    """
    return _compiled(function, _IN_PLACE)


def inlined(function: Function) -> Function:
    """Compile into the callers, in place too: for what is called often, from one place."""
    inside = numba.njit(error_model="numpy", inline="always", **_IN_PLACE)
    return cast("Function", inside(function))


def _compiled(function: Function, options: Mapping[str, bool]) -> Function:
    elsewhere = numba.config.CACHE_DIR
    try:
        file = getattr(sys.modules.get(function.__module__), "__file__", None)
        numba.config.CACHE_DIR = str(_cache_dir(Path(file or __file__).parent))
        kept: Any = numba.njit(cache=True, error_model="numpy", **options)(function)
        keeper = getattr(kept, "_cache", None)  # NUMBA_DISABLE_JIT has none
        if keeper is not None:
            keeper.save_overload = _on_a_full_disk_too(keeper.save_overload)
    except (RuntimeError, OSError):  # no home, or no directory that it may write to
        kept = numba.njit(error_model="numpy", **options)(function)
    finally:
        numba.config.CACHE_DIR = elsewhere
    return cast("Function", kept)


def _on_a_full_disk_too(save: Callable[..., None]) -> Callable[..., None]:
    def save_if_possible(*given: object) -> None:
        with suppress(OSError):
            save(*given)

    return save_if_possible


@cache
def _cache_dir(sources: Path) -> Path:
    """Return the directory for code made from these sources, and remove all but the newest others.

    Numba unpickles what lies there: of a directory that others can write to, or that lies in such a
    one, nothing is used. Raises OSError for another user's.
    """
    digest = hashlib.sha256()
    for path in sorted(sources.glob("*.py")):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tuner"
    version = f"{importlib.metadata.version('tuner')}-numba-{numba.__version__}"
    ours = root / f"{version}-{digest.hexdigest()[:16]}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    was_open = root.stat().st_mode & 0o022
    _check_own(root)
    if was_open:
        root.chmod(0o700)
    ours.mkdir(mode=0o700, exist_ok=True)
    if was_open or ours.lstat().st_mode & 0o022:
        shutil.rmtree(ours)
        ours.mkdir(mode=0o700)
    _check_own(ours)
    os.utime(ours)
    others = [(path.stat().st_mtime, path) for path in root.iterdir() if path != ours]
    for _, path in sorted(others, reverse=True)[OLD_CACHES:]:
        shutil.rmtree(path, ignore_errors=True)
    return ours


def _check_own(folder: Path) -> None:
    if folder.stat().st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "belongs to another user", str(folder))


def _make_up_no_names() -> None:
    """Let the handle of llvmlite, numba's compiler, have no attributes but those that it has.

    It answers to any name, ``__dict__`` too. vLLM 0.32 asks every object of every loaded module for
    that when a CPU engine starts, and fails on the answer.
    """
    kind: Any = type(getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None))
    ask = getattr(kind, "__getattr__", None)
    if ask is None:
        return

    def answer(self: object, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return ask(self, name)

    kind.__getattr__ = answer


_make_up_no_names()
