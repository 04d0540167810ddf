"""What is set before vLLM is imported."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.vllm

PREPARED = """
import os
from tuner.engines.vllm import start
start._prepare("tuner:tiny", start.default_log())
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
