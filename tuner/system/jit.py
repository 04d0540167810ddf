"""Compile numeric loops to machine code, and keep the code between runs."""

import ast
import errno
import hashlib
import importlib.metadata
import os
import pickle
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
from numba.core.caching import IndexDataCacheFile  # noqa: E402
from numba.core.options import DefaultOptions  # noqa: E402

Function = TypeVar("Function", bound=Callable[..., object])

OLD_CACHES = 2
"""Caches of other versions that stay: whoever goes back to one need not compile again."""

_IN_PLACE = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
"""Numba's option not to count who holds an array; not every version has it (0.65 does)."""


def compiled(function: Function) -> Function:
    """Compile on the first call.

    The machine code is kept in the user's cache directory until the function, or any module that
    its own imports, changes; where that cannot be written, every process compiles anew.
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
        numba.config.CACHE_DIR = str(_cache_dir())
        kept = numba.njit(cache=True, error_model="numpy", **options)(function)
        _keep_while_sources_stay(kept, function)
    except (RuntimeError, OSError):  # no home, or no directory that it may write to
        kept = numba.njit(error_model="numpy", **options)(function)
    finally:
        numba.config.CACHE_DIR = elsewhere
    return cast("Function", kept)


def _keep_while_sources_stay(kept: Any, function: Callable[..., object]) -> None:  # noqa: ANN401 - of numba
    """Recompile when anything changes that a function is made of, and go on where the disk is full.

    Numba 0.65 does not see that a function which this one calls has changed, or a constant that it
    uses, in another file. And it raises what its cache raises: a full disk is to cost time and not
    the run.
    """
    cache_ = getattr(kept, "_cache", None)
    if cache_ is None:  # NUMBA_DISABLE_JIT
        return
    cache_._cache_file = _Index(  # noqa: SLF001 - numba offers no way to say it
        cache_path=cache_.cache_path,
        filename_base=cache_._impl.filename_base,  # noqa: SLF001
        source_stamp=_digest(function.__module__),
    )
    save = cache_.save_overload

    def save_if_possible(signature: object, data: object) -> None:
        with suppress(OSError):
            save(signature, data)

    cache_.save_overload = save_if_possible


class _Index(IndexDataCacheFile):  # type: ignore[misc]  # numba has no types
    """Numba's index of kept code; one that names a class which was renamed since is empty.

    Numba 0.65 asks for whose source it is only after it has unpickled all of it.
    """

    def _load_index(self) -> dict[Any, Any]:
        try:
            found: dict[Any, Any] = super()._load_index()
        except (pickle.UnpicklingError, AttributeError, ImportError, EOFError, IndexError):
            return {}
        return found


@cache
def _digest(module: str) -> str:
    """Return the digest of a module's source and of all that it imports of its own package."""
    seen: dict[str, bytes] = {}
    todo = {module}
    while todo:
        name = todo.pop()
        seen[name], imported = _source(name)
        todo |= imported - seen.keys()
    digest = hashlib.sha256()
    for name, source in sorted(seen.items()):
        digest.update(f"{name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


@cache
def _source(module: str) -> tuple[bytes, frozenset[str]]:
    """Return a module's source, and every name of its package that it imports as it loads.

    Empty where it has no file, and of a name that is no module.
    """
    file = getattr(sys.modules.get(module), "__file__", None)
    source = b"" if file is None else Path(file).read_bytes()
    package, *_ = module.split(".")
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return source, frozenset(name for name in found if name.split(".")[0] == package)


@cache
def _cache_dir() -> Path:
    """Return this version's own directory, and remove all but the newest of other versions.

    Numba unpickles what lies there: of a directory that others can write to, or that lies in such a
    one, nothing is used. Raises OSError for another user's.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tuner"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    was_open = root.stat().st_mode & 0o022
    _check_own(root)
    if was_open:
        root.chmod(0o700)
    ours = root / f"{importlib.metadata.version('tuner')}-numba-{numba.__version__}"
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
