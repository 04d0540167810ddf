"""The part of the trace that is tuned for, and what is read of an option about it. Pure."""

import re
from dataclasses import dataclass

from tuner.errors import UsageError

_UNITS_S = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<value>[0-9]{1,9}(?:\.[0-9]{1,9})?)(?P<unit>ms|s|m|h|)")


@dataclass(frozen=True, slots=True)
class Part:
    """The part of the trace that is tuned for, in seconds from the trace's origin: [begin, end)."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    def __str__(self) -> str:
        return f"{self.begin_s:.3f}s+{self.length_s:.3f}s"


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of trace that one replay sends, in seconds from the trace's origin."""

    start_s: float
    """Where scoring starts."""

    length_s: float
    run_in_s: float

    @property
    def replay_s(self) -> float:
        """The time that a replay of it sends."""
        return self.run_in_s + self.length_s

    def __str__(self) -> str:
        return f"{self.start_s:.3f}s+{self.length_s:.3f}s"


def parse_duration_s(text: str, *, option: str) -> float:
    """Read ``90``, ``90s``, ``1.5m``, ``2h`` or ``500ms`` as seconds.

    Raises UsageError for anything else and for zero.
    """
    result = _DURATION.fullmatch(text.strip())
    if result is None or float(result["value"]) == 0:
        raise UsageError(
            f"{option}: {text!r} is not a positive duration",
            hint="Write a number above 0 with ms, s, m or h: 90s, 1.5m or 2h.",
        )
    return float(result["value"]) * _UNITS_S[result["unit"]]


def parse_window(text: str) -> tuple[float, float] | None:
    """Return (start, length) in seconds of ``START+LEN``; None for ``busiest`` and ``all``.

    Raises UsageError for anything else.
    """
    if text in {"busiest", "all"}:
        return None
    parts = text.split("+")
    if len(parts) != 2:
        raise UsageError(
            f"--window: cannot read {text!r}", hint="Write busiest, all or START+LEN (120s+60s)."
        )
    zero = parts[0].strip() in {"0", "0s"}
    start_s = 0.0 if zero else parse_duration_s(parts[0], option="--window")
    return start_s, parse_duration_s(parts[1], option="--window")
