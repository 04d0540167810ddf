"""What is set before vLLM is imported."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

PREPARED = """
import os
from tuner.engines.vllm import start
start._set_variables("tuner:tiny", start.default_log())
print(os.environ["VLLM_WORKER_MULTIPROC_METHOD"])
"""


@pytest.mark.parametrize(("set_by_the_user", "method"), [(None, "spawn"), ("fork", "fork")])
def test_workers_are_spawned_as_the_server_spawns_them(
    set_by_the_user: str | None, method: str
) -> None:
    """``vllm serve`` spawns them unless told otherwise; an engine in a program would fork them."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}  # no fork server, which would outlive this
    environment.pop("VLLM_WORKER_MULTIPROC_METHOD", None)
    if set_by_the_user is not None:
        environment["VLLM_WORKER_MULTIPROC_METHOD"] = set_by_the_user
    done = subprocess.run(
        [sys.executable, "-c", PREPARED],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{method}\n"


@pytest.mark.parametrize("set_by_the_user", [{}, {"HF_HUB_DISABLE_TELEMETRY": "0"}])
def test_telemetry_is_off_unless_the_user_set_it(set_by_the_user: dict[str, str]) -> None:
    off = dict.fromkeys(("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY"), "1")
    kept = {name: value for name, value in os.environ.items() if name not in off}
    program = f"{PREPARED}print(*(os.environ[name] for name in {tuple(off)}))\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, "OMP_NUM_THREADS": "2", **set_by_the_user},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1].split() == [*{**off, **set_by_the_user}.values()]


def test_sockets_get_a_path_that_linux_takes_in_a_folder_of_a_long_name_too(tmp_path: Path) -> None:
    """Linux takes 107 bytes."""
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    program = f"{PREPARED}print(start.new_page().socket)\nprint(os.environ['VLLM_RPC_BASE_PATH'])\n"
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "TMPDIR": str(deep)}
    environment.pop("VLLM_RPC_BASE_PATH", None)
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    _, socket, folder = done.stdout.splitlines()
    assert len(socket) <= 107
    assert len(folder) + len("/") + len(str(uuid.uuid4())) <= 107


@pytest.mark.attack
def test_nothing_is_imported_from_the_folder_that_tuner_is_run_in(tmp_path: Path) -> None:
    """Python puts that folder first for ``-c`` and ``-m``, by which vLLM and multiprocessing start
    their own; a stranger's may hold what is called as a module of theirs."""
    for name in ("multiprocessing", "contextlib", "vllm"):
        (tmp_path / f"{name}.py").write_text("open('owned', 'w')\n")
    program = f"{PREPARED}from multiprocessing import resource_tracker\n"
    program += "resource_tracker.ensure_running()\nresource_tracker._resource_tracker._stop()\n"
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    environment.pop("PYTHONSAFEPATH", None)
    words = [sys.executable, "-P", "-c", program]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, check=False)
    assert done.stdout == b"spawn\n", done.stderr
    assert not (tmp_path / "owned").exists()
