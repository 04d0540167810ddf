"""How long work goes, on stderr: plain lines, and a live view at the foot of a terminal."""

import copy
import math
import os
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from tuner.profile.summary import milliseconds, minutes, percent
from tuner.replay.live_reading import LiveReading
from tuner.replay.measure import Measurement
from tuner.replay.readings import Read
from tuner.replay.records import DEVICE
from tuner.system.printable import printable

if TYPE_CHECKING:
    from tuner.live.exporter import SweepExporter

EVERY_S = 0.5
"""Between two drawings: each takes a millisecond of the loop that sends."""
ROWS = ("ladder", "now", "KV", "device", "belief", "left")
"""The order of the rows below the title."""
LEAST_OTHERS = 0.05
"""Share of the cores below which other processes are not shown."""


def is_live(console: Console) -> bool:
    """Whether lines may be rewritten: on a terminal that can, unless the environment asks for plain
    ones (``CI``, ``NO_COLOR``)."""
    plain = any(os.environ.get(name) for name in ("CI", "NO_COLOR"))
    return console.is_terminal and not console.is_dumb_terminal and not plain


class Progress:
    """What a command does now, and what it has found. Used as a context manager around the work;
    the live view is gone in the end, the lines stay."""

    def __init__(
        self,
        budget_s: float = math.inf,
        caps: Sequence[int] = (),
        console: Console | None = None,
    ) -> None:
        """``caps`` are those of the ladder; ``budget_s`` is how long the work may take."""
        self.console = console or Console(stderr=True, highlight=False)
        self.budget_s = budget_s
        self.prefix = ""
        self.exporter: SweepExporter | None = None
        self.title, self.rows = "", dict.fromkeys(ROWS, "")
        self.ladder = dict.fromkeys(caps, False)
        """Cap → whether it was measured."""
        self._what, self._length_s = "", 0.0
        self._began_s, self._drawn_s = time.monotonic(), 0.0
        self._live: Live | None = None
        if is_live(self.console):
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
        """Print a line that stays: wrapped between words on a terminal, unbroken in a log."""
        clock = "{:02}:{:02} ".format(*divmod(int(self.elapsed_s), 60))
        lines = [f"{clock}{self.prefix}{printable(text)}"]
        if self.console.is_terminal:
            lines = textwrap.wrap(
                lines[0], self.console.width, subsequent_indent=" " * len(clock),
                break_on_hyphens=False,
            )  # fmt: skip
        for line in lines:
            self.console.print(escape(line), soft_wrap=True)

    def warn(self, text: str) -> None:
        self.say(f"Warning: {text}")

    def stage(self, text: str) -> None:
        self.say(text)
        self.show("", {"now": "", "KV": ""})

    def trial(self, what: str, length_s: float) -> None:
        """A replay begins: ``what`` ends with its cap."""
        self._done(self._cap)
        self._what, self._length_s = what, length_s
        if self._live is None:
            self.say(f"{what}: {length_s:.0f} s")
        rows = {"ladder": self._ladder(), "now": "", "KV": ""}
        self.show(f"{self.prefix}{what}: {length_s:.0f} s", rows)

    def live(self, seen: LiveReading) -> None:
        """Show a replay under way."""
        if self.exporter is not None:
            self.exporter.live(seen.in_flight)
        if self._live is not None:
            length = f"{seen.elapsed_s:.0f} of {self._length_s:.0f} s"
            title = f"{self.prefix}{self._what}: {length}, {seen.done} done"
            self.show(title, rows_of(seen), at_once=False)

    def believed(self, best: int, agreeing: int, draws: int) -> None:
        self.show("", {"belief": f"{best}, in {agreeing} of {draws} draws"})

    def measured(self, what: str, numbers: Measurement) -> None:
        """Print what a replay gave."""
        if self.exporter is not None:
            self.exporter.measured(numbers)
        self._done(numbers.max_num_seqs)
        share = "at most " * bool(numbers.cut) + percent(
            numbers.attainment_bound if numbers.cut else numbers.attainment
        )
        parts = [f"{what}: {share} met the SLO", f"{numbers.output_tokens_per_s:,.0f} tok/s"]
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
            row = read()
            if row is not None:
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
        lines = Text(no_wrap=True, overflow="ellipsis")
        lines.append(printable(self.title), style="bold")
        for name, words in self.rows.items():
            if words:
                lines.append(f"\n  {name:<8}", style="dim")
                lines.append(printable(words))
        return lines

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def _cap(self) -> int:
        """The cap of the step under way; 0 of a ramp, which goes up to one."""
        name, _, word = self._what.rpartition(" ")
        return int(word) if word.isdecimal() and not name.endswith(" to") else 0

    def _done(self, cap: int) -> None:
        if cap in self.ladder:
            self.ladder[cap] = True

    def _ladder(self) -> str:
        done, here = ("✓", "▸") if self.console.encoding.startswith("utf") else ("+", ">")
        return "  ".join(
            f"{here}{cap}" if cap == self._cap else f"{cap}{done * is_done}"
            for cap, is_done in self.ladder.items()
        )


def rows_of(seen: LiveReading) -> dict[str, str]:
    """Return what a replay under way shows."""
    parts = [f"{seen.decoding} decoding, {seen.waiting} before a first token"]
    if seen.tpot_s is not None:
        parts.append(f"TPOT {milliseconds(1e3 * seen.tpot_s)}")
    if seen.ttft_tail_s is not None:
        parts.append(f"p95 TTFT {milliseconds(1e3 * seen.ttft_tail_s)}")
    kv = seen.kv_cache_usage
    return {"now": ", ".join(parts), "KV": "" if kv is None else f"about {kv:.0%} in use"}


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
