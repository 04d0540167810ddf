"""Which cap holds when: an ordinary day in the head, and every day on which clocks change."""

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.live_servers import DIGEST
from tuner.engines.server.cap_schedule import CapAt, CapSchedule, next_turn, turn_at

ZONES = (
    *("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"),
    *("America/Havana", "Pacific/Apia", "Africa/Casablanca", "Asia/Tehran", "America/St_Johns"),
)
"""Changes of an hour and of half an hour, at midnight, twice a year more, and a day left out."""


def schedule(zone: str, **caps: int) -> CapSchedule:
    """``at_0700=16`` lets 16 hold from 07:00 on."""
    return CapSchedule(
        zone=zone,
        caps=[
            CapAt(
                at=f"{name[3:5]}:{name[5:7]}",
                max_num_seqs=cap,
                max_num_batched_tokens=None,
                profile=DIGEST,
            )
            for name, cap in caps.items()
        ],
    )


def cap(plan: CapSchedule, text: str) -> int:
    return turn_at(plan, datetime.fromisoformat(text)).cap.max_num_seqs


@pytest.mark.parametrize(
    ("when", "holds"),
    [("06:59:59", 8), ("07:00:00", 16), ("21:59:59", 16), ("22:00:00", 8), ("00:00:00", 8)],
)
def test_on_an_ordinary_day_the_wall_clock_says_it(when: str, holds: int) -> None:
    plan = schedule("Europe/Berlin", at_0700=16, at_2200=8)
    assert cap(plan, f"2026-11-20T{when}+01:00") == holds


def test_the_hour_that_is_left_out_in_spring_begins_its_cap_at_the_leap() -> None:
    plan = schedule("Europe/Berlin", at_0230=8, at_0700=16)
    assert cap(plan, "2026-03-29T00:59:59+00:00") == 16
    assert cap(plan, "2026-03-29T01:00:00+00:00") == 8  # 03:00 on the wall
    assert next_turn(plan, datetime(2026, 3, 28, 12, tzinfo=UTC))[0].isoformat() == (
        "2026-03-29T01:00:00+00:00"
    )


def test_the_hour_that_comes_twice_in_autumn_begins_its_cap_once() -> None:
    plan = schedule("Europe/Berlin", at_0230=8, at_0700=16)
    assert cap(plan, "2026-10-25T02:29:59+02:00") == 16
    assert cap(plan, "2026-10-25T02:30:00+02:00") == 8
    assert cap(plan, "2026-10-25T02:10:00+01:00") == 8  # ten past two, again


@st.composite
def plans(draw: st.DrawFn) -> CapSchedule:
    minutes = draw(st.lists(st.integers(0, 24 * 60 - 1), min_size=1, max_size=5, unique=True))
    caps = {f"at_{m // 60:02}{m % 60:02}": n + 1 for n, m in enumerate(minutes)}
    return schedule(draw(st.sampled_from(ZONES)), **caps)


@st.composite
def times(draw: st.DrawFn) -> datetime:
    """Any second of years with every kind of change; Samoa had no 30th of December 2011."""
    begin = datetime(draw(st.sampled_from([2011, 2024, 2026])), 1, 1, tzinfo=UTC)
    return begin + timedelta(seconds=draw(st.integers(0, 366 * 86400)))


def changes_clocks(zone: str, around: datetime) -> bool:
    offsets = {
        (around + timedelta(hours=hours)).astimezone(ZoneInfo(zone)).utcoffset()
        for hours in range(-36, 37)
    }
    return len(offsets) > 1


@cache
def changes(zone: str, year: int) -> list[datetime]:
    """Return the hours, in UTC, within which the clocks of a year change."""
    begin = datetime(year, 1, 1, tzinfo=UTC)
    hours = [begin + timedelta(hours=hour) for hour in range(366 * 24)]
    offsets = [hour.astimezone(ZoneInfo(zone)).utcoffset() for hour in hours]
    return [
        hour for hour, one, other in zip(hours, offsets, offsets[1:], strict=False) if one != other
    ]


@given(plan=plans(), now=times())
def test_away_from_changes_it_is_the_latest_time_that_the_wall_shows_to_be_past(
    plan: CapSchedule, now: datetime
) -> None:
    if changes_clocks(plan.zone, now):
        return
    shown = now.astimezone(ZoneInfo(plan.zone)).time()
    past = [one for one in plan.caps if one.time <= shown]
    expected = max(past or plan.caps, key=lambda one: one.at)
    assert turn_at(plan, now).cap == expected


@pytest.mark.parametrize("zone", ZONES[1:])
@settings(max_examples=15)
@given(plan=plans())
def test_over_every_change_of_clocks_each_cap_begins_once_a_day_and_in_order(
    zone: str, plan: CapSchedule
) -> None:
    plan = plan.model_copy(update={"zone": zone})
    for change in changes(zone, 2011 if zone == "Pacific/Apia" else 2026)[:3]:
        now = change - timedelta(days=2)
        turn = turn_at(plan, now)
        begun = [turn]
        while now < change + timedelta(days=2):
            later, following = next_turn(plan, now)
            assert later > now
            assert turn_at(plan, later - timedelta(seconds=1)) == turn
            assert turn_at(plan, later) == following
            assert following.wall > turn.wall  # in order, and none for a second time
            now, turn = later, following
            begun.append(turn)
        walls = {one.wall for one in begun}
        days = {wall.date() for wall in walls}
        for day in sorted(days)[1:-1]:  # whole days; a day that is left out has begun at the leap
            expected = {datetime.combine(day, one.time) for one in plan.caps}
            missing = expected - walls
            assert all(_is_leapt_over(wall, begun[0].wall, zone) for wall in missing), missing


def _is_leapt_over(wall: datetime, begin: datetime, zone: str) -> bool:
    """Several times within one leap begin together, and the latest of them holds."""
    assert wall > begin
    aware = wall.replace(tzinfo=ZoneInfo(zone))
    return aware.astimezone(UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None) != wall


@pytest.mark.parametrize(
    ("zone", "times_of_day"),
    [
        ("Europe/Atlantis", ["07:00"]),
        ("../../etc/passwd", ["07:00"]),
        ("/etc/localtime", ["07:00"]),
        ("Europe", ["07:00"]),
        ("", ["07:00"]),
        ("UTC", []),
        ("UTC", ["07:00", "07:00"]),
        ("UTC", ["24:00"]),
        ("UTC", ["7:00"]),
        ("UTC", ["07:00\n"]),
        ("UTC", ["\u0660\u0667:\u0660\u0660"]),
        ("UTC", [f"{n // 60:02}:{n % 60:02}" for n in range(49)]),
    ],
)
def test_what_is_no_schedule_is_refused(zone: str, times_of_day: list[str]) -> None:
    caps = [
        {"at": at, "max_num_seqs": 1, "max_num_batched_tokens": None, "profile": DIGEST}
        for at in times_of_day
    ]
    with pytest.raises(ValidationError):
        CapSchedule.model_validate({"zone": zone, "caps": caps})
