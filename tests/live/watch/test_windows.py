"""What a server counted between two scrapes: increments, restarts, gaps, quantiles."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from tuner.live.prometheus import Histogram, ServerMetrics
from tuner.live.watch.windows import WindowMaker, quantile_range, step, total


def metrics(done: float, *, waiting: float = 0.0, started_s: float | None = None) -> ServerMetrics:
    """Return a server that has served ``done`` requests of 10 ms a token, 5 tokens each."""
    gaps = Histogram((0.005, 0.02, math.inf), (0.0, 4 * done, 4 * done), 0.04 * done)
    return ServerMetrics(
        gauges={"running": 2.0, "waiting": waiting},
        counters={"output_tokens": 5 * done},
        distributions={"itl_s": gaps},
        finish_reasons={"stop": done},
        started_s=started_s,
    )


def test_a_step_is_what_came_between_two_scrapes() -> None:
    found = step(metrics(10), metrics(13, waiting=1), 0.0, 2.0)
    assert found.restarted is False
    assert (found.finished, found.counters["output_tokens"], found.length_s) == (3, 15, 2.0)
    assert (found.in_flight, found.running, found.waiting) == (2, 2, 1)
    assert found.distributions["itl_s"].counts == (0, 12, 12)


@pytest.mark.parametrize(
    ("before", "after"),
    [(metrics(10), metrics(4)), (metrics(3, started_s=100.0), metrics(4, started_s=200.0))],
    ids=["a counter fell", "it says so"],
)
def test_after_a_restart_everything_is_new(before: ServerMetrics, after: ServerMetrics) -> None:
    found = step(before, after, 0.0, 2.0)
    assert found.restarted
    assert (found.finished, found.in_flight) == (4, 0)
    assert found.distributions["itl_s"].count == 16


def test_what_a_scrape_did_not_tell_is_neither_a_restart_nor_all_new() -> None:
    whole, part = metrics(10), ServerMetrics({"running": 2.0}, {}, {})
    for before, after in ((whole, part), (part, whole)):
        found = step(before, after, 0.0, 2.0)
        assert found.restarted is False
        assert (found.finished, found.distributions, found.counters) == (0, {}, {})


def windows(scrapes: Mapping[float, Mapping[str, ServerMetrics]], **times: Any) -> list[Any]:  # noqa: ANN401
    maker = WindowMaker(**{"length_s": 10.0, "every_s": 2.0, "run_in_s": 10.0, **times})
    found = [maker.add(at_s, engines) for at_s, engines in scrapes.items()]
    return [*(one for one in found if one is not None), maker.missed]


def test_windows_hold_all_that_happened_and_know_what_came_before() -> None:
    scrapes = {2.0 * i: {"0": metrics(i)} for i in range(16)}
    first, second, third, missed = windows(scrapes)
    assert [one.length_s for one in (first, second, third)] == [10.0] * 3
    assert sum(one.finished for one in second.every_step) == 5
    assert len(first.run_in["0"]) == 0
    assert len(third.run_in["0"]) == 5
    assert missed == 0


def test_scrapes_that_come_a_little_early_or_late_do_not_shift_the_windows() -> None:
    scrapes = {2.0 * i + 0.3 * (-1) ** i: {"0": metrics(i)} for i in range(51)}
    found = windows(scrapes)
    assert len(found) == 10 + 1
    assert all(abs(one.length_s - 10) < 1 for one in found[:-1])


def test_a_missed_scrape_is_made_up_by_the_next_and_a_long_gap_is_in_no_window() -> None:
    short = {2.0 * i: {"0": metrics(i)} for i in range(11) if i != 3}
    first, _, missed = windows(short)
    assert sum(one.finished for one in first.every_step) == 5
    assert missed == 0
    long = {2.0 * i: {"0": metrics(i)} for i in range(31) if not 8 <= i <= 20}
    found = windows(long)
    assert found[-1] == 1
    assert all(one.begin_s >= 42 or one.end_s <= 14 for one in found[:-1])


@pytest.mark.parametrize("gap_s", [4.0, 60.0])
def test_a_restart_is_counted_however_long_nothing_answered(gap_s: float) -> None:
    maker = WindowMaker(10.0, 2.0, 60.0)
    scrapes = [2.0 * i for i in range(31)]
    scrapes += [60.0 + gap_s + 2.0 * i for i in range(11)]
    found = [
        maker.add(at_s, {"0": metrics(at_s if at_s <= 60 else at_s - 60 - gap_s)})
        for at_s in scrapes
    ]
    assert maker.restarts == 1
    assert maker.missed == (gap_s > 10)
    assert [one.restarts for one in found if one is not None][5:7] == [0, 1]


def test_counters_that_begin_anew_in_the_same_process_are_all_new() -> None:
    found = step(metrics(10, started_s=100.0), metrics(4, started_s=100.0), 0.0, 2.0)
    assert found.restarted
    assert found.finished == found.counters["output_tokens"] / 5 == 4


def test_a_counter_that_jumps_is_in_no_window_and_no_gauge_is_beyond_reason() -> None:
    scrapes = {2.0 * i: {"0": metrics(i if i < 8 else i + 1e9, waiting=-3)} for i in range(16)}
    *found, missed = windows(scrapes)
    assert missed == 1
    assert all(sum(one.finished for one in window.every_step) <= 10 for window in found)
    assert all(one.waiting == 0 for window in found for one in window.every_step)
    many = ServerMetrics({"running": 1e300}, {}, {})
    assert step(many, many, 0.0, 2.0).running == 1e6


def test_servers_that_answer_in_turn_are_told_from_one_that_restarts() -> None:
    for starts, several in (((1, 2, 3), False), ((1, 1, 2, 2), False), ((1, 2, 1), True)):
        maker = WindowMaker(10.0, 2.0, 60.0)
        for place, start in enumerate(starts):
            maker.add(2.0 * place, {"0": metrics(place, started_s=100.0 * start)})
        assert maker.is_several is several


def test_engines_that_come_or_go_begin_a_window_anew() -> None:
    scrapes: dict[float, dict[str, ServerMetrics]] = {
        2.0 * i: {"0": metrics(i)} if i < 8 else {"0": metrics(i), "1": metrics(i)}
        for i in range(21)
    }
    *found, missed = windows(scrapes)
    assert missed == 1
    assert [sorted(one.steps) for one in found] == [["0"], ["0", "1"], ["0", "1"]]


def test_what_ran_before_a_restart_is_no_run_in() -> None:
    scrapes = {2.0 * i: {"0": metrics(i if i < 8 else i - 8)} for i in range(16)}
    third = windows(scrapes, run_in_s=60.0)[2]
    assert [one.restarted for one in third.run_in["0"]] == [True, False, False]


def test_a_quantile_is_the_range_that_buckets_and_chance_leave_it() -> None:
    many = Histogram((1.0, 2.0, 5.0, math.inf), (50_000, 90_000, 99_000, 100_000), 0.0)
    assert quantile_range(many, 0.5) == (0.0, 2.0)  # just at the edge of two buckets
    assert quantile_range(many, 0.95) == (2.0, 5.0)
    assert quantile_range(many, 0.999) == (5.0, math.inf)
    few = Histogram((1.0, 2.0, 5.0, math.inf), (5, 9, 10, 10), 0.0)
    assert quantile_range(few, 0.5) == (0.0, 2.0)
    assert quantile_range(few, 0.95) == (1.0, 5.0)
    assert quantile_range(Histogram((math.inf,), (0,), 0.0), 0.5) is None


def test_distributions_of_several_steps_add_up() -> None:
    steps = [step(metrics(i), metrics(i + 2), float(i), i + 1.0) for i in (0, 2, 4)]
    found = total(steps, "itl_s")
    assert found is not None
    assert found.count == 24
    assert found.total == pytest.approx(0.24)
    assert total(steps, "ttft_s") is None
