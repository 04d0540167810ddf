"""How work goes, on stderr: lines that stay, and on a terminal a last line that changes."""

import copy
import math
import time
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tuner.profile.summary import milliseconds, minutes, percent
from tuner.replay.numbers import Measurement
from tuner.system.printable import printable
from tuner.views.profile import cells

if TYPE_CHECKING:
    from tuner.live.prometheus import Exporter

EVERY_S = 0.5
"""Between two drawings: each takes a millisecond of the loop that sends."""

EXPORTED = ("attainment", "goodput_rps", "tpot_p95_s", "e2el_p99_s")


class Progress:
    """What a command does and has measured. A context manager around the work, after which the
    last line is gone."""

    def __init__(self, budget_s: float = math.inf) -> None:
        """``budget_s`` is how long the work may take."""
        self.console = Console(stderr=True, highlight=False)
        self.budget_s, self.prefix = budget_s, ""
        self.exporter: Exporter | None = None
        self._what, self._length_s = "", 0.0
        self._began_s, self._drawn_s = time.monotonic(), 0.0
        self._last = Live(
            console=self.console, auto_refresh=False, transient=True, redirect_stdout=False
        )

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._last.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._last.stop()

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

    def warn(self, *texts: str) -> None:
        for text in texts:
            self.say(f"Warning: {text}")

    def stage(self, text: str) -> None:
        self.say(text)
        self.show(text)

    def trial(self, what: str, length_s: float) -> None:
        """A replay begins."""
        self._what, self._length_s = what, length_s
        (self.show if self._last.is_started else self.say)(f"{what}: {length_s:.0f} s")

    def live(self, elapsed_s: float, in_flight: int, decoding: int) -> None:
        """Show a replay under way."""
        if self.exporter is not None:
            self.exporter.set("in_flight", in_flight)
        if time.monotonic() - self._drawn_s >= EVERY_S:
            self.show(
                f"{self._what}: {elapsed_s:.0f} of {self._length_s:.0f} s, {decoding} decoding, "
                f"{in_flight - decoding} before a first token"
            )

    def measured(self, what: str, numbers: Measurement) -> None:
        """Print what a replay gave."""
        for name, value in zip(EXPORTED, cells(numbers, *EXPORTED), strict=True):
            if self.exporter is not None and isinstance(value, float):
                self.exporter.set(name, value, max_num_seqs=numbers.max_num_seqs)
        share = numbers.attainment_bound if numbers.cut else numbers.attainment
        text = f"{what}: {'at most ' * bool(numbers.cut)}{percent(share)} met the SLO"
        text += f", {numbers.output_tokens_per_s:,.0f} tok/s"
        if numbers.tpot_s is not None:
            text += f", p95 TPOT {milliseconds(1e3 * numbers.tpot_s.p95)}"
        if numbers.e2el_s is not None:
            text += f", p99 E2EL {milliseconds(1e3 * numbers.e2el_s.p99)}"
        self.say(text + (f" (cut: {numbers.cut})" if numbers.cut else ""))

    def show(self, text: str) -> None:
        """Change the last line."""
        if not self._last.is_started:
            return
        self._drawn_s = time.monotonic()
        left_s = self.budget_s - self.elapsed_s
        left = f" [at most {minutes(max(0.0, left_s))} left]" if math.isfinite(left_s) else ""
        line = Text(printable(f"{self.prefix}{text}{left}"), no_wrap=True, overflow="ellipsis")
        self._last.update(line, refresh=True)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s
