"""The live view: a few lines at the foot of a terminal that are rewritten while a command runs."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tuner.profile.summary import milliseconds
from tuner.replay.live_reading import LiveReading
from tuner.replay.readings import Read
from tuner.replay.records import DEVICE
from tuner.system.printable import printable

EVERY_S = 0.5
"""Between two drawings: each takes a millisecond of the loop that sends."""

NAMES = 8


LEAST_OTHERS = 0.05
"""Of the cores: what others take less is not shown."""

IDLE = {"now": "", "KV": ""}
"""The rows of a replay while there is none."""


def rows_of(seen: LiveReading) -> dict[str, str]:
    """Return the rows of a replay under way."""
    kv = seen.kv_cache_usage
    return {
        "now": in_flight(seen),
        "KV": "" if kv is None else f"about {100 * kv:.0f} % of the cache, by those that decode",
    }


def in_flight(seen: LiveReading) -> str:
    """Return what a replay under way shows."""
    parts = [f"{seen.decoding} decoding, {seen.waiting} before a first token"]
    if seen.tpot_s is not None:
        parts.append(f"TPOT {milliseconds(1e3 * seen.tpot_s)}")
    if seen.ttft_tail_s is not None:
        parts.append(f"p95 TTFT {milliseconds(1e3 * seen.ttft_tail_s)}")
    return ", ".join(parts)


def device_in_words(row: Sequence[float]) -> str:
    """Return a reading of the device in words."""
    one = dict(zip(DEVICE.names or (), row, strict=True))
    parts = []
    if math.isfinite(one["utilisation"]):
        parts.append(f"{100 * one['utilisation']:.0f} % busy")
    if math.isfinite(one["memory_bytes"]):
        parts.append(f"{one['memory_bytes'] / 2**30:.1f} GiB in use")
    if math.isfinite(one["others"]) and one["others"] >= LEAST_OTHERS:
        parts.append(f"{100 * one['others']:.0f} % of the cores are others'")
    return ", ".join(parts)


def is_live(console: Console) -> bool:
    """Whether lines may be rewritten: on a terminal that can, and where nobody asked for plain
    ones (``CI``, ``NO_COLOR``)."""
    plain = any(os.environ.get(name) for name in ("CI", "NO_COLOR"))
    return console.is_terminal and not console.is_dumb_terminal and not plain


class LiveView:
    """Rows of a name and a text, under a line of its own. Draws nothing where ``is_live`` is not.

    What is printed on its console meanwhile stands above it, and stays. In the end it is gone.
    """

    def __init__(self, console: Console, order: Sequence[str] = ()) -> None:
        """``order`` is that of the rows; others come below."""
        self.title = ""
        self.rows = dict.fromkeys(order, "")
        self._drawn_s = 0.0
        self._is_up = False
        self._live: Live | None = None
        if is_live(console):
            self._live = Live(
                console=console, auto_refresh=False, transient=True, redirect_stdout=False
            )

    @property
    def is_on(self) -> bool:
        return self._live is not None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._is_up = True
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._live is not None:
            self._is_up = False
            self._live.stop()

    def show(self, title: str, rows: Mapping[str, str], *, at_once: bool = False) -> None:
        """Change what stands there; drawn now, or with the next change after EVERY_S."""
        self.title = title
        self.rows |= rows
        now_s = time.monotonic()
        if (
            self._live is None
            or not self._is_up
            or not (at_once or now_s - self._drawn_s >= EVERY_S)
        ):
            return
        self._drawn_s = now_s
        self._live.update(self.text(), refresh=True)

    def reading(self, read: Read | None) -> Read | None:
        """Return what reads the device as ``read`` does, and shows what it read."""
        if read is None or self._live is None:
            return read

        def seen() -> tuple[float, ...] | None:
            row = read()
            if row is not None:
                self.rows["device"] = device_in_words(row)
            return row

        return seen

    def text(self) -> Text:
        """Return the lines, none longer than the terminal is wide."""
        found = Text(no_wrap=True, overflow="ellipsis")
        found.append(printable(self.title), style="bold")
        for name, text in self.rows.items():
            if text:
                found.append(f"\n  {name:<{NAMES}}", style="dim")
                found.append(printable(text))
        return found


class CommandProgress:
    """Tells on stderr how a command goes: a live view on a terminal, plain lines elsewhere."""

    ROWS: ClassVar[tuple[str, ...]] = ()
    """The order of the view's rows."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.view = LiveView(self.console, self.ROWS)
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def __enter__(self) -> Self:
        self.view.__enter__()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.view.__exit__()
