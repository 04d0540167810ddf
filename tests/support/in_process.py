"""The program in this process: as a subprocess would run it, without two seconds of imports."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main

from tuner import cli
from tuner.system.interruption import SIGNALS

typer.main.get_command = cache(typer.main.get_command)
"""Of the options of all commands typer makes a parser whenever the program is called: once is
enough for a process that is one after the other."""


def tuner(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run ``tuner`` with these words in a folder; return its exit code and both of its streams.

    What a signal, a limit of the process or its end does to a command needs a process of its own.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    text = list(map(str, words))
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        signals_as_they_were(),
        environment_as_it_was(),
        _called(["tuner", *text]),
        pytest.raises(SystemExit) as ended,
    ):
        cli.main()
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess(text, ended.value.code, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    """Return all that was written, as a pipe would have it."""
    stream.flush()
    stream.seek(0)
    return stream.read()


@contextlib.contextmanager
def signals_as_they_were() -> Iterator[None]:
    """``cli.main`` decides on signals for the rest of the process, which here is not its own."""
    were = [signal.getsignal(number) for number in SIGNALS]
    try:
        yield
    finally:
        for number, was in zip(SIGNALS, were, strict=True):
            signal.signal(number, was)


@contextlib.contextmanager
def environment_as_it_was() -> Iterator[None]:
    """What a command sets, most of it for vLLM, is not for the next one, nor for other Pythons."""
    was = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(was)


@contextlib.contextmanager
def _called(words: list[str]) -> Iterator[None]:
    were, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = were
