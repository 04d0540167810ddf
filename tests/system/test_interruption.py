"""What signals do to a command, one after the other: each program here is ended by them."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.traces import SAMPLES
from tuner.system.interruption import SIGNALS

PREPARED = """
import asyncio, os, signal, sys, threading
from pathlib import Path
from tuner.system import interruption
interruption.listen()
interruption.say_at_the_end(lambda: ("2 replays are kept", "Go on."))
"""
LAST_WORDS = "Interrupted: 2 replays are kept\nGo on.\n"


def ended(
    program: str, signals: list[signal.Signals], *words: str | Path
) -> subprocess.CompletedProcess[str]:
    """Run a program, send a signal after each line that it prints, end its input, and wait."""
    arguments = [sys.executable, "-c", PREPARED + textwrap.dedent(program), *map(str, words)]
    with subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SAMPLES.parent)},
    ) as process:
        assert process.stdout is not None
        lines = []
        for number in signals:
            lines.append(process.stdout.readline())
            process.send_signal(number)
        try:
            out, text = process.communicate(timeout=60)
        finally:
            process.kill()
    return subprocess.CompletedProcess(arguments, process.returncode, "".join(lines) + out, text)


@pytest.mark.parametrize(("first", "second"), list(zip(SIGNALS, SIGNALS[::-1], strict=True)))
def test_the_first_signal_cleans_up_and_the_second_does_not_wait_for_that(
    first: signal.Signals, second: signal.Signals
) -> None:
    done = ended(
        """
        async def main():
            try:
                print("up", flush=True)
                await asyncio.sleep(3600)
            finally:
                print("cleaning", flush=True)
                await asyncio.to_thread(threading.Event().wait)
        interruption.ends_with_us(lambda: print("the engine is ended", flush=True))
        interruption.run(main())
        """,
        [first, second],
    )
    assert (done.returncode, done.stderr) == (130, LAST_WORDS)
    assert done.stdout == "up\ncleaning\nthe engine is ended\n"
