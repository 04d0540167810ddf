"""A schedule of caps by time of day, in a time zone with its clock changes. Pure.

A cap begins when the wall clock first shows its time, and once a day. When clocks go back, nothing
begins a second time and nothing is taken back. A time that clocks leap over begins at the leap.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Annotated, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MOST = 48
"""Caps in one schedule: one every half hour."""

MaxNumSeqs = Annotated[int, Field(ge=1, le=2**20)]
MaxNumBatchedTokens = Annotated[int, Field(ge=1, le=2**31)]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class CapAt(BaseModel):
    """The limits of one profile, and from which time of day on they hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    at: Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
    max_num_seqs: MaxNumSeqs
    max_num_batched_tokens: MaxNumBatchedTokens | None
    """None: as it is."""

    profile: Digest

    @property
    def time(self) -> time:
        return time.fromisoformat(self.at)


class CapSchedule(BaseModel):
    """The same every day."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    zone: Annotated[str, Field(min_length=1, max_length=64)]
    """IANA name, as ``Europe/Berlin``."""

    caps: Annotated[list[CapAt], Field(min_length=1, max_length=MOST)]

    @field_validator("zone")
    @classmethod
    def _is_known(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a folder
            raise ValueError(f"there is no time zone {zone!r} here") from None
        return zone

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        times = [cap.at for cap in self.caps]
        twice = sorted({at for at in times if times.count(at) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is there twice")
        if len({cap.max_num_batched_tokens is None for cap in self.caps}) > 1:
            raise ValueError("max_num_batched_tokens is for all of the caps or for none")
        return self


@dataclass(frozen=True, slots=True)
class ScheduledCap:
    """A cap, on one of the days on which it begins."""

    wall: datetime
    """What the wall clock shows, or would have shown, when it begins; without a time zone."""

    cap: CapAt


def turn_at(schedule: CapSchedule, now: datetime) -> ScheduledCap:
    """Return the turn that ``now``, an aware time, is in."""
    passed = [turn for turn in _turns(schedule, now) if _has_begun(schedule, turn.wall, now)]
    return max(passed, key=lambda turn: turn.wall)


def next_turn(schedule: CapSchedule, now: datetime) -> tuple[datetime, ScheduledCap]:
    """Return when the next turn begins, in UTC and to the second, and the turn."""
    ahead = [turn for turn in _turns(schedule, now) if not _has_begun(schedule, turn.wall, now)]
    wall = min(turn.wall for turn in ahead)
    before = now.astimezone(UTC).replace(microsecond=0)
    low, high = 0, round((_first_shown(schedule, wall) - before).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        if _has_begun(schedule, wall, before + timedelta(seconds=middle)):
            high = middle
        else:
            low = middle
    begins = before + timedelta(seconds=high)
    return begins, turn_at(schedule, begins)


def _turns(schedule: CapSchedule, now: datetime) -> Iterator[ScheduledCap]:
    """Yield those of the days around: a zone may skip a whole day, or go back to the one before."""
    today = now.astimezone(ZoneInfo(schedule.zone)).date()
    for days in range(-2, 4):
        for cap in schedule.caps:
            yield ScheduledCap(datetime.combine(today + timedelta(days=days), cap.time), cap)


def _has_begun(schedule: CapSchedule, wall: datetime, now: datetime) -> bool:
    """Whether the clock has shown this time. Once true it stays so, also when clocks go back: the
    second condition sees to that."""
    shown = now.astimezone(ZoneInfo(schedule.zone)).replace(tzinfo=None)
    return shown >= wall or now >= _first_shown(schedule, wall)


def _first_shown(schedule: CapSchedule, wall: datetime) -> datetime:
    """Return when the clock first shows this; for what it leaps over, a time after the leap."""
    return wall.replace(tzinfo=ZoneInfo(schedule.zone), fold=0).astimezone(UTC)
