"""Compile numeric loops to machine code, and keep the code between runs."""

import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile on the first call.

    The machine code is kept in the user's cache directory; where that cannot be written, every
    process compiles anew.
    """
    elsewhere = numba.config.CACHE_DIR
    try:
        numba.config.CACHE_DIR = str(_cache_dir())
        kept = numba.njit(cache=True, error_model="numpy")(function)
        _compile_even_if_it_cannot_be_kept(kept)
    except (RuntimeError, OSError):  # no home, or no directory that it may write to
        kept = numba.njit(error_model="numpy")(function)
    finally:
        numba.config.CACHE_DIR = elsewhere
    return cast("Function", kept)


def _compile_even_if_it_cannot_be_kept(kept: Any) -> None:  # noqa: ANN401 - of numba
    """Let a full disk cost time and not the run: numba 0.65 raises what its cache raises."""
    cache_ = getattr(kept, "_cache", None)
    if cache_ is None:  # NUMBA_DISABLE_JIT
        return
    save = cache_.save_overload

    def save_if_possible(signature: object, data: object) -> None:
        with suppress(OSError):
            save(signature, data)

    cache_.save_overload = save_if_possible


@cache
def _cache_dir() -> Path:
    """Return one directory per state of our sources: numba does not see that a function changed
    which a kept one calls, if it is in another file."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    sources = sorted(Path(__file__).parent.glob("scheduler_*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources))
    return root / "tuner" / digest.hexdigest()[:16]


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
