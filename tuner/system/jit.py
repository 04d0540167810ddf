"""Compile numeric loops to machine code, and keep the code between runs."""

import hashlib
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from tuner.system.files import refuse_config_of_folder

refuse_config_of_folder()

import numba  # noqa: E402 - which reads it

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function, **options: bool) -> Function:
    """Compile on the first call.

    The machine code is kept in the user's cache directory until a file in the function's folder
    changes; where that cannot be written, every process compiles anew.
    """
    before = numba.config.CACHE_DIR
    file = getattr(sys.modules.get(function.__module__), "__file__", None) or __file__
    try:
        numba.config.CACHE_DIR = str(_cache_dir(Path(file).parent))
        kept = numba.njit(cache=True, error_model="numpy", **options)(function)
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
    return compiled(function, _nrt=False)


def inlined(function: Function) -> Function:
    """Compile into the callers, in place too: for what is called often, from one place."""
    return cast("Function", numba.njit(error_model="numpy", inline="always", _nrt=False)(function))


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
