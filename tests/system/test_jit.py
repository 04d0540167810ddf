import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.system import jit
from tuner.system.jit import compiled, compiled_in_place, inlined

HERE = Path(__file__).parent
CALLER = """
from tuner.system.jit import compiled

from package import constants
from package.callee import change

@compiled
def changed(x):
    return change(x) + constants.MORE

if __name__ == "package.caller":
    print(changed(1))
"""
CALLEE = """
from tuner.system.jit import compiled

@compiled
def change(x):
    return {}
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package in which one module calls a compiled function of another."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "caller.py").write_text(CALLER)
    (folder / "callee.py").write_text(CALLEE.format("x * 10"))
    (folder / "constants.py").write_text("MORE = 1\n")
    return folder


def run(package: Path) -> str:
    # Python knows an edit by size and second, so that its own cache would miss one made at once
    kept = {"XDG_CACHE_HOME": str(package.parent / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", "import package.caller"]
    return subprocess.run(
        command,
        cwd=package.parent,
        env={**os.environ, **kept},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def kept_code(package: Path) -> dict[Path, int]:
    files = (package.parent / "cache").rglob("*changed-*.nbc")
    return {path: path.stat().st_mtime_ns for path in files}


def test_after_an_edit_in_the_folder_all_is_compiled_anew(package: Path) -> None:
    assert run(package) == "11"
    first = kept_code(package)
    assert run(package) == "11"
    assert kept_code(package) == first != {}
    (package / "callee.py").write_text(CALLEE.format("x * 20"))
    assert run(package) == "21"
    (package / "constants.py").write_text("MORE = 2\n")
    assert run(package) == "22"


@pytest.mark.attack
def test_nothing_is_unpickled_that_others_could_have_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ours = jit._cache_dir.__wrapped__(HERE)
    assert ours.stat().st_mode & 0o777 == 0o700
    assert jit._cache_dir.__wrapped__(HERE) == ours
    for folder in (ours, ours.parent):
        folder.chmod(0o775)
        with pytest.raises(PermissionError, match="others can write"):
            jit._cache_dir.__wrapped__(HERE)
        folder.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(PermissionError, match="others can write"):
        jit._cache_dir.__wrapped__(HERE)


@pytest.mark.attack
def test_what_a_strangers_folder_tells_numba_is_not_obeyed(tmp_path: Path) -> None:
    """It would write a page over any file of ours."""
    (tmp_path / ".numba_config.yaml").write_text("dump_html: ours.txt\n")
    program = (
        "import sys; from tuner import cli; sys.argv = ['tuner', 'plan', 'p.yaml']; cli.main()"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("Error: .numba_config.yaml: would be obeyed by numba")
    assert done.stderr.count("\n") == 2


def test_a_function_is_compiled_where_nothing_can_be_kept() -> None:
    """Code without a file stands for code in a directory that cannot be written to."""
    namespace: dict[str, Any] = {}
    exec("def twice(x): return x + x", namespace)
    assert compiled(namespace["twice"])(2) == 4


@pytest.mark.parametrize("options", [jit._IN_PLACE, {}], ids=["as here", "of another numba"])
def test_what_is_compiled_in_place_changes_the_arrays_that_it_is_given(
    options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "_IN_PLACE", options)
    names: dict[str, Any] = {}
    exec("def add(values, more): values[0] += more", names)
    names["add"] = inlined(names["add"])
    exec("def twice(values):\n  add(values, 1)\n  add(values[1:], 2)\n  return len(values)", names)
    values = np.zeros(3)
    held = sys.getrefcount(values)
    assert compiled_in_place(names["twice"])(values) == 3
    assert (values.tolist(), sys.getrefcount(values)) == ([1, 2, 0], held)


def test_a_division_by_zero_is_a_number_as_in_numpy() -> None:
    def share(part: float, whole: float) -> float:
        return part / whole

    assert compiled(share)(1.0, 0.0) == float("inf")


def test_vllm_can_look_at_the_compilers_library() -> None:
    """It reads the ``__dict__`` of whatever has one; a made-up one stops the engine's start."""
    handle = sys.modules["llvmlite.binding.ffi"].lib
    assert not hasattr(handle, "__dict__")
    assert callable(handle.LLVMPY_GetVersionInfo)
