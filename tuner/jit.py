"""Compile numeric loops to machine code, and keep the code between runs."""

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile on the first call.

    The machine code is kept in the user's cache directory; where that cannot be written, every
    process compiles anew.
    """
    elsewhere = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_cache_dir())
    try:
        kept = numba.njit(cache=True, error_model="numpy")(function)
    except (RuntimeError, OSError):  # no directory that it may write to
        kept = numba.njit(error_model="numpy")(function)
    finally:
        numba.config.CACHE_DIR = elsewhere
    return cast("Function", kept)


@cache
def _cache_dir() -> Path:
    """Return one directory per state of our sources: numba does not see that a function changed
    which a kept one calls, if it is in another file."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    sources = sorted(Path(__file__).parent.glob("scheduler_*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources))
    return root / "tuner" / digest.hexdigest()[:16]
