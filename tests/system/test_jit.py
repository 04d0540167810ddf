import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.system.jit import compiled, compiled_in_place, inlined

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
    done = subprocess.run(
        command, cwd=package.parent, env={**os.environ, **kept}, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


def kept_code(package: Path) -> dict[Path, int]:
    files = (package.parent / "cache").rglob("*changed-*.nbc")
    return {path: path.stat().st_mtime_ns for path in files}


def test_code_is_kept_until_a_file_of_the_folder_changes(package: Path) -> None:
    assert run(package) == "11"
    first = kept_code(package)
    assert run(package) == "11"
    assert kept_code(package) == first != {}
    (package / "callee.py").write_text(CALLEE.format("x * 20"))
    (package / "constants.py").write_text("MORE = 2\n")
    assert run(package) == "22"


@pytest.mark.attack
def test_nothing_is_kept_or_unpickled_where_others_can_write(package: Path) -> None:
    (package.parent / "cache" / "tuner").mkdir(parents=True)
    (package.parent / "cache" / "tuner").chmod(0o775)
    assert run(package) == "11"
    assert kept_code(package) == {}


@pytest.mark.attack
def test_what_a_strangers_folder_tells_numba_is_not_obeyed(tmp_path: Path) -> None:
    """It would write a page over any file of ours."""
    (tmp_path / ".numba_config.yaml").write_text("dump_html: ours.txt\n")
    program = "import sys; from tuner import cli; sys.argv = ['tuner', 'plan', 'p']; cli.main()"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("Error: .numba_config.yaml: would be obeyed by numba")


def test_what_is_compiled_in_place_changes_the_arrays_that_it_is_given() -> None:
    """Code without a file stands for code in a directory that cannot be written to."""
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
