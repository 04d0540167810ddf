"""Compile numeric loops to machine code, keeping the compiled code between runs where allowed."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile on the first call.

    The machine code is kept beside the module, or in the user's cache directory where the package
    is read-only; where neither can be written it is compiled anew by every process.
    """
    try:
        kept = numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # numba found no directory that it may write to
        kept = numba.njit(error_model="numpy")(function)
    return cast("Function", kept)
