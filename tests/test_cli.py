"""The program as a process: its streams, its signals, its exit codes."""

import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.traces import SAMPLES, row, write_lines

SAMPLE = SAMPLES / "translation.jsonl"
PROGRAM = [sys.executable, "-c", "from tuner.cli import main; main()"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SAMPLES.parent)}


def tuner(*arguments: object, redirected: str = "") -> subprocess.CompletedProcess[str]:
    """Run it behind a shell's redirection."""
    return subprocess.run(
        ["sh", "-c", f'"$@" {redirected}', "sh", *PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )


def test_it_says_which_version_it_is() -> None:
    done = tuner("--version")
    ours, supported = done.stdout.splitlines()
    assert (done.returncode, ours, done.stderr) == (0, f"tuner {version('tuner')}", "")
    assert supported.startswith("for vLLM 0.30 to 0.33; installed: ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["trace", "show", SAMPLE], ["--help"]])
def test_an_output_that_cannot_be_written_is_named_with_a_cure(arguments: list[object]) -> None:
    done = tuner(*arguments, redirected=">/dev/full")
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "Error: stdout: cannot be written: no space left on device",
        "Free some space, or send the output elsewhere.",
    ]


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_stream_that_is_closed_is_discarded(closed: str) -> None:
    done = tuner("trace", "show", SAMPLE, redirected=closed)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_has_seen_enough_ends_it_in_silence() -> None:
    done = tuner("trace", "show", SAMPLE, redirected="| true")
    assert (done.stdout, done.stderr) == ("", "")


def test_what_the_locale_cannot_spell_is_escaped(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "\u00fc.jsonl", row(0), row(1000))
    done = subprocess.run(
        [*PROGRAM, "trace", "show", path.name],  # a long path is wrapped
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\xfc.jsonl" in done.stdout


INTERRUPTED = """Interrupted: nothing half-written was left behind
Run the command again.
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interruption_anywhere_is_told(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "t"
    path.write_bytes(b'{"timestamp":1,"input_length":1,"output_length":1}\n' * 1_000_000)
    with subprocess.Popen(
        [*PROGRAM, "trace", "import", path, "-o", tmp_path / "out"],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        while not list(tmp_path.glob(".tuner-*")) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        _, words = process.communicate()
    assert (process.returncode, words) == (130, INTERRUPTED)


@pytest.mark.parametrize("repeated", [None, signal.SIGTERM])
def test_an_interruption_during_the_imports_is_told(
    tmp_path: Path, repeated: signal.Signals | None
) -> None:
    """A module found first on the path stands in for the slow ones."""
    (tmp_path / "typer.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()\n"
    )
    code = (
        "import atexit, os, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"if {repeated is not None}: atexit.register(os.kill, os.getpid(), {repeated or 0:d})\n"
        "from tuner.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{SAMPLES.parent}"},
    )
    assert (done.returncode, done.stderr) == (130, INTERRUPTED)


def test_what_nohup_has_switched_off_stays_off() -> None:
    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "from tuner.cli import main\n"
        "try: main()\n"
        "finally: print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    assert done.stdout.splitlines()[-1] == "True"
