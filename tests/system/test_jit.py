"""Compiled code: kept between runs, and beside vLLM."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner.system.jit import compiled_in_place, inlined

MODULE = """
from tuner.system.jit import compiled

@compiled
def changed(x):
    return x * {} / 0

print(changed(1.0))
"""


def run(folder: Path, text: str) -> dict[Path, int]:
    """Run a module whose division by zero is a number, and return the code that is kept."""
    module = folder / "module.py"
    if not module.exists() or module.read_text() != text:
        module.write_text(text)
    kept = {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    words, env = [sys.executable, "-c", "import module"], {**os.environ, **kept}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, check=True)
    assert done.stdout == b"inf\n"
    return {path: path.stat().st_mtime_ns for path in (folder / "cache").rglob("*.nbc")}


def test_code_is_kept_until_a_file_of_the_folder_changes(tmp_path: Path) -> None:
    first = run(tmp_path, MODULE.format(10))
    assert run(tmp_path, MODULE.format(10)) == first != {}
    assert len(run(tmp_path, MODULE.format(20))) > len(first)


@pytest.mark.attack
def test_nothing_is_kept_or_unpickled_where_others_can_write(tmp_path: Path) -> None:
    (tmp_path / "cache" / "tuner").mkdir(parents=True)
    (tmp_path / "cache" / "tuner").chmod(0o775)
    assert run(tmp_path, MODULE.format(10)) == {}


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
    assert compiled_in_place(names["twice"])(values) == 3
    assert values.tolist() == [1, 2, 0]


def test_vllm_can_look_at_the_compilers_library() -> None:
    """It reads the ``__dict__`` of whatever has one; a made-up one stops the engine's start."""
    handle = sys.modules["llvmlite.binding.ffi"].lib
    assert not hasattr(handle, "__dict__")
    assert callable(handle.LLVMPY_GetVersionInfo)
