"""Compile numeric loops to machine code, and keep the code between runs."""

import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from tuner.system.files import refuse_config_of_folder

refuse_config_of_folder()

import numba  # noqa: E402 - which reads it
from numba.core.options import DefaultOptions  # noqa: E402

Function = TypeVar("Function", bound=Callable[..., object])

_IN_PLACE = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
"""Numba's option not to count who holds an array; not every version has it (0.65 does)."""


def compiled(function: Function, **options: bool) -> Function:
    """Compile on the first call.

    The machine code is kept in the user's cache directory until a file in the function's folder
    changes; where that cannot be written, every process compiles anew.
    """
    before = numba.config.CACHE_DIR
    file = getattr(sys.modules.get(function.__module__), "__file__", None)
    try:
        numba.config.CACHE_DIR = str(_cache_dir(Path(file or __file__).parent))
        kept: Any = numba.njit(cache=True, error_model="numpy", **options)(function)
        if keeper := getattr(kept, "_cache", None):  # NUMBA_DISABLE_JIT has none
            keeper.save_overload = _on_a_full_disk_too(keeper.save_overload)
    except (RuntimeError, OSError):  # no home, or no directory that it may write to
        kept = numba.njit(error_model="numpy", **options)(function)
    finally:
        numba.config.CACHE_DIR = before
    return cast("Function", kept)


def compiled_in_place(function: Function) -> Function:
    """Compile in place: the function makes no array and only changes those that its caller holds.

    Counting who else holds an array takes more than half the time of a small loop. Here nobody
    counts.
    """
    return compiled(function, **_IN_PLACE)


def inlined(function: Function) -> Function:
    """Compile into the callers, in place too: for what is called often, from one place."""
    inside = numba.njit(error_model="numpy", inline="always", **_IN_PLACE)
    return cast("Function", inside(function))


def _on_a_full_disk_too(save: Callable[..., None]) -> Callable[..., None]:
    def save_if_possible(*arguments: object) -> None:
        with suppress(OSError):
            save(*arguments)

    return save_if_possible


@cache
def _cache_dir(sources: Path) -> Path:
    """Return the directory for code made from these sources.

    Numba unpickles what lies there, so nothing is used of a directory that is another user's or
    that others can write to. Raises OSError for one.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(sources.glob("*.py")):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tuner"
    folder = root / f"numba-{digest.hexdigest()[:16]}"
    for each in (root, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = each.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(f"{each}: others can write to it")
    return folder


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
