"""What tests of several folders share."""

import time
from collections.abc import Callable

import pytest

FreeClock = Callable[[], float]


@pytest.fixture
def free_clock(monkeypatch: pytest.MonkeyPatch) -> FreeClock:
    """A clock on which sleeping takes no time."""
    slept, monotonic = [0.0], time.monotonic
    monkeypatch.setattr(time, "sleep", lambda length_s: slept.append(slept.pop() + length_s))
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + slept[0])
    return lambda: time.monotonic()  # noqa: PLW0108 - the one that is patched
