"""What is set before vLLM is imported."""

import os
import subprocess
import sys
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

PREPARED = """
import os
from tuner.engines.vllm import start
start.set_variables({"model": "tuner:tiny"}, start.default_log())
print(os.environ["VLLM_WORKER_MULTIPROC_METHOD"])
"""


def prepared(
    program: str = "",
    variables: Mapping[str, str] | None = None,
    *,
    without: Collection[str] = (),
    cwd: Path | None = None,
) -> list[str]:
    """Run PREPARED and ``program`` in this environment but for the variables; return what they
    print. Two threads: no fork server, which would outlive this."""
    kept = {name: value for name, value in os.environ.items() if name not in without}
    done = subprocess.run(
        [sys.executable, "-P", "-c", PREPARED + program],
        env={**kept, "OMP_NUM_THREADS": "2", **(variables or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_sockets_get_a_path_that_linux_takes_in_a_folder_of_a_long_name_too(tmp_path: Path) -> None:
    """Linux takes 107 bytes."""
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    program = "print(start.default_log().with_name('page-10') / 'api')\n"
    program += "print(os.environ['VLLM_RPC_BASE_PATH'])\n"
    _, socket, folder = prepared(program, {"TMPDIR": str(deep)}, without=["VLLM_RPC_BASE_PATH"])
    assert len(socket) <= 107
    assert len(folder) + len("/") + len(str(uuid.uuid4())) <= 107


@pytest.mark.attack
def test_nothing_is_imported_from_the_folder_that_tuner_is_run_in(tmp_path: Path) -> None:
    """Python puts that folder first for ``-c`` and ``-m``, by which vLLM and multiprocessing start
    their own; a stranger's may hold what is called as a module of theirs."""
    for name in ("multiprocessing", "contextlib", "vllm"):
        (tmp_path / f"{name}.py").write_text("open('owned', 'w')\n")
    program = "from multiprocessing import resource_tracker\n"
    program += "resource_tracker.ensure_running()\nresource_tracker._resource_tracker._stop()\n"
    assert prepared(program, without=["PYTHONSAFEPATH"], cwd=tmp_path) == ["spawn"]
    assert not (tmp_path / "owned").exists()
