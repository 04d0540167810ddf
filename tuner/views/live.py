"""How long work goes, on stderr: plain lines, and a live view at the foot of a terminal."""

import copy
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tuner.profile.summary import milliseconds, minutes, percent
from tuner.replay.numbers import Measurement
from tuner.replay.readings import Read
from tuner.replay.records import DEVICE
from tuner.replay.replay import LiveReading
from tuner.system.printable import printable

if TYPE_CHECKING:
    from tuner.live.exporter import SweepExporter

EVERY_S = 0.5
"""Between two drawings: each takes a millisecond of the loop that sends."""
ROWS = ("ladder", "now", "device", "belief", "left")
"""The order of the rows below the title."""
LEAST_OTHERS = 0.05
"""Share of the cores below which other processes are not shown."""


class Progress:
    """What a command does now, and what it has measured. Used as a context manager around the work;
    the live view is gone in the end, the lines stay."""

    def __init__(self, budget_s: float = math.inf, caps: Sequence[int] = ()) -> None:
        """``caps`` are those of the ladder; ``budget_s`` is how long the work may take."""
        self.console = Console(stderr=True, highlight=False)
        self.budget_s, self.prefix = budget_s, ""
        self.exporter: SweepExporter | None = None
        self.title, self.rows = "", dict.fromkeys(ROWS, "")
        self.ladder = dict.fromkeys(caps, False)
        """Cap → whether it was measured."""
        self._what, self._length_s, self._cap = "", 0.0, 0
        self._began_s, self._drawn_s = time.monotonic(), 0.0
        is_plain = self.console.is_dumb_terminal or any(map(os.environ.get, ("CI", "NO_COLOR")))
        self._live: Live | None = None
        if self.console.is_terminal and not is_plain:
            self._live = Live(
                console=self.console, auto_refresh=False, transient=True, redirect_stdout=False
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._live is not None:
            self._live.stop()

    def named(self, name: str) -> "Progress":
        """Return the same for one part of the work, whose lines begin with its name."""
        part = copy.copy(self)
        part.prefix = f"{name}: "
        return part

    def say(self, text: str) -> None:
        """Print a line that stays: wrapped on a terminal, unbroken in a log."""
        clock = "{:02}:{:02} ".format(*divmod(int(self.elapsed_s), 60))
        line = Text(f"{clock}{self.prefix}{printable(text)}")
        self.console.print(line, soft_wrap=not self.console.is_terminal)

    def warn(self, text: str) -> None:
        self.say(f"Warning: {text}")

    def stage(self, text: str) -> None:
        self.say(text)
        self.show("", {"now": ""})

    def trial(self, what: str, length_s: float) -> None:
        """A replay begins: ``what`` ends with its cap, a ramp with "to" and the cap."""
        name, _, word = what.rpartition(" ")
        is_step = word.isdecimal() and not name.endswith(" to")
        self._what, self._length_s, self._cap = what, length_s, int(word) if is_step else 0
        if self._live is None:
            self.say(f"{what}: {length_s:.0f} s")
        self.show(f"{self.prefix}{what}: {length_s:.0f} s", {"ladder": self._ladder(), "now": ""})

    def live(self, seen: LiveReading) -> None:
        """Show a replay under way."""
        if self.exporter is not None:
            self.exporter.live(seen.in_flight)
        if self._live is None:
            return
        parts = [f"{seen.decoding} decoding, {seen.waiting} before a first token"]
        if seen.tpot_s is not None:
            parts.append(f"TPOT {milliseconds(1e3 * seen.tpot_s)}")
        length = f"{seen.elapsed_s:.0f} of {self._length_s:.0f} s"
        title = f"{self.prefix}{self._what}: {length}, {seen.done} done"
        self.show(title, {"now": ", ".join(parts)}, at_once=False)

    def believed(self, best: int, agreeing: int, draws: int) -> None:
        self.show("", {"belief": f"{best}, in {agreeing} of {draws} draws"})

    def measured(self, what: str, numbers: Measurement) -> None:
        """Print what a replay gave."""
        if self.exporter is not None:
            self.exporter.measured(numbers)
        if numbers.max_num_seqs in self.ladder:
            self.ladder[numbers.max_num_seqs] = True
        share = numbers.attainment_bound if numbers.cut else numbers.attainment
        parts = [
            f"{what}: {'at most ' * bool(numbers.cut)}{percent(share)} met the SLO",
            f"{numbers.output_tokens_per_s:,.0f} tok/s",
        ]
        if numbers.tpot_s is not None:
            parts.append(f"p95 TPOT {milliseconds(1e3 * numbers.tpot_s.p95)}")
        if numbers.e2el_s is not None:
            parts.append(f"p99 E2EL {milliseconds(1e3 * numbers.e2el_s.p99)}")
        self.say(", ".join(parts) + (f" (cut: {numbers.cut})" if numbers.cut else ""))

    def reading(self, read: Read | None) -> Read | None:
        """Return what reads the device as ``read`` does, and shows what it read."""
        if read is None or self._live is None:
            return read

        def shown() -> tuple[float, ...] | None:
            if (row := read()) is not None:
                self.rows["device"] = _device(row)
            return row

        return shown

    def show(self, title: str, rows: Mapping[str, str], *, at_once: bool = True) -> None:
        """Change the live view; it is drawn now, or with the next change after EVERY_S."""
        self.title = title or self.title
        self.rows |= rows
        if math.isfinite(self.budget_s):
            self.rows["left"] = f"at most {minutes(max(0.0, self.budget_s - self.elapsed_s))}"
        now_s = time.monotonic()
        if self._live is None or not self._live.is_started:
            return
        if at_once or now_s - self._drawn_s >= EVERY_S:
            self._drawn_s = now_s
            self._live.update(self.text(), refresh=True)

    def text(self) -> Text:
        """Return the lines of the live view, none longer than the terminal is wide."""
        lines = Text(printable(self.title), style="bold", no_wrap=True, overflow="ellipsis")
        for name, words in self.rows.items():
            if words:
                lines.append(f"\n  {name:<8}{printable(words)}", style="not bold")
        return lines

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _ladder(self) -> str:
        """Return the caps: the one under way in brackets, those that were measured with a dot."""
        return "  ".join(
            f"[{cap}]" if cap == self._cap else f"{cap}{'.' * is_done}"
            for cap, is_done in self.ladder.items()
        )


def _device(row: Sequence[float]) -> str:
    reading = dict(zip(DEVICE.names or (), row, strict=True))
    parts = []
    if math.isfinite(reading["utilisation"]):
        parts.append(f"{reading['utilisation']:.0%} busy")
    if math.isfinite(reading["memory_bytes"]):
        parts.append(f"{reading['memory_bytes'] / 2**30:.1f} GiB in use")
    if reading["others"] >= LEAST_OTHERS:  # not where it is NaN
        parts.append(f"other processes take {reading['others']:.0%} of the cores")
    return ", ".join(parts)
