"""Refuses times without a zone whose order in the file shows that they cannot be read.

So it is where an hour is there twice, or where times of day are of two days.
"""

from datetime import UTC, datetime, timedelta

import numpy as np

from tuner.errors import TraceError
from tuner.trace.formats.columnar.batch import Batch, Floats
from tuner.trace.tables.clocks import ColumnClock
from tuner.trace.tables.plan import TablePlan

SET_BACK_MS = (20 * 60_000.0, 75 * 60_000.0)
"""Range by which times go back where clocks are set back by an hour, with the gap between two
rows."""

AN_HOUR_MS = 3_600_000.0
"""An hour. Rows that are written when a request ends are less out of order than that."""

FRIDAY = 4
NIGHT_HOURS = (23, 0, 1, 2, 3)
MONTHS_SET_BACK = (3, 4, 9, 10, 11)
"""Months in which clocks are set back, but for the month of Ramadan in Morocco. It is in the night
to Sunday nearly everywhere, in Egypt to Friday; and at midnight in Chile, Egypt and Lebanon, so
that the hour from 23 on is there twice."""

IN_ORDER = 0.01
"""Share of the rows that may be so far before the row above. A table in no order has more of them,
and its steps show nothing."""


class TimesInOrder:
    """Watches the times of one table from batch to batch."""

    def __init__(self, plan: TablePlan, place: str, *, unit: str = "line") -> None:
        column = plan.columns.get("timestamp") or plan.columns["end"]
        clock = column.reader
        assert isinstance(clock, ColumnClock)
        self.heading, self.place, self.unit = column.heading, place, unit
        self.of_ends = "timestamp" not in plan.columns
        self.is_time = clock.order == "time"
        self.is_local = clock.dated and not clock.zoned
        self.last_ms: float | None = None

    def checked(self, batch: Batch, first: int) -> Batch:
        """Return the batch, whose first row is this one. Raises TraceError where local times show
        an hour twice, and times of day those of two days."""
        if not len(batch) or not (self.is_local or self.is_time):
            return batch
        times_ms = batch.times["timestamp"]
        if self.of_ends:
            times_ms = times_ms + batch.times["e2e_ms"]
        before_ms = times_ms[0] if self.last_ms is None else self.last_ms
        self.last_ms = float(times_ms[-1])
        times_ms = np.concatenate([[before_ms], times_ms])
        if self.is_time:
            self._check_day(np.diff(times_ms), first)
        else:
            self._check_hours(times_ms, first)
        return batch

    def _check_day(self, steps_ms: Floats, first: int) -> None:
        forward = int(np.sign(steps_ms[np.abs(steps_ms) < AN_HOUR_MS]).sum())
        back_ms = steps_ms if forward < 0 else -steps_ms
        if (back_ms if forward else np.abs(back_ms)).max() >= AN_HOUR_MS:
            raise TraceError(
                f"{self.place}: from {self.unit} {first} on, {self.heading!r} goes back as if it "
                "passed midnight, and no column says which day it is",
                hint="Export the date too; or sort the rows, if all are of one day.",
            )

    def _check_hours(self, times_ms: Floats, first: int) -> None:
        steps_ms = np.diff(times_ms)
        newest_first = int(np.sign(steps_ms).sum()) < 0
        back_ms = steps_ms if newest_first else -steps_ms
        far_back = back_ms >= SET_BACK_MS[0]
        if far_back.sum() > max(1, IN_ORDER * len(steps_ms)):
            return
        for step in np.flatnonzero(far_back & (back_ms <= SET_BACK_MS[1])).tolist():
            before = datetime.fromtimestamp(times_ms[step + newest_first] / 1000, UTC)
            is_night = (
                before + timedelta(hours=1)
            ).weekday() >= FRIDAY and before.hour in NIGHT_HOURS
            if is_night and before.month in MONTHS_SET_BACK:
                raise TraceError(
                    f"{self.place}: from {self.unit} {first} on, {self.heading!r} goes back from "
                    f"{before:%Y-%m-%d %H:%M:%S} by {back_ms[step] / 60_000:.0f} min: clocks were "
                    f"set back, and times without a zone have that hour twice",
                    hint="Export times in UTC or with their zone; or cut the file there.",
                )
