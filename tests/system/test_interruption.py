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
BY_ITSELF = "Interrupted: nothing half-written was left behind\nRun the command again.\n"


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


@pytest.mark.parametrize("is_hit", [True, False])
def test_an_error_that_a_signal_causes_is_the_signals_and_others_stay_bugs(
    tmp_path: Path, *, is_hit: bool
) -> None:
    """Extension modules make an ImportError of a KeyboardInterrupt that hits them."""
    hit = "os.kill(os.getpid(), signal.SIGINT); signal.pause()" if is_hit else "pass"
    (tmp_path / "typer.py").write_text(
        f"import os, signal\ntry: {hit}\n"
        "except KeyboardInterrupt: pass\nraise ImportError('cannot be imported')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "from tuner.cli import main; main()"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{SAMPLES.parent}"},
    )  # fmt: skip
    if is_hit:
        assert (done.returncode, done.stderr) == (130, BY_ITSELF)
    else:
        assert "ImportError: cannot be imported" in done.stderr
