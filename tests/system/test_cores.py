"""Where tuner's client runs, and where the engines that it starts."""

import os
import sys
from pathlib import Path

from tests.support.processes import wait_until
from tuner.engines.server.start import ServeProcess
from tuner.system.cores import split


def test_of_three_cores_or_more_one_is_the_clients() -> None:
    assert split({4, 5}) == ({4, 5}, {4, 5})
    assert split({3, 9, 12, 40}) == ({40}, {3, 9, 12})


def test_a_server_keeps_off_the_clients_core_and_keeps_its_niceness(tmp_path: Path) -> None:
    cores, log = os.sched_getaffinity(0), tmp_path / "log"
    program = "print('up', flush=True); import time; time.sleep(600)"
    process = ServeProcess([sys.executable, "-c", program], environment={}, log=log)
    try:
        wait_until(lambda: "up" in log.read_text())
        assert os.sched_getaffinity(process.group) == split(cores)[1]
        assert os.getpriority(os.PRIO_PROCESS, process.group) == os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        process.kill()
