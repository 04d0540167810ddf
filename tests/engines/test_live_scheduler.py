"""Limits that change while vLLM's own scheduler is at work."""

# ruff: noqa: ANN401 - vLLM's objects, and modules that import it

import itertools
import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.processes import wait_until
from tuner.live import control

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def config(lone: Any) -> Any:
    return lone.configured()


@pytest.fixture(scope="module")
def configs(lone: Any, config: Any) -> dict[int, Any]:
    """By how many iterations are under way at once; two need async scheduling."""
    overlapping = lone.configured()
    overlapping.scheduler_config.async_scheduling = True
    return {1: config, 2: overlapping}


@pytest.fixture
def scheduler(lone: Any, config: Any) -> Any:
    return lone.scheduler_of(lone.live.LiveScheduler, config)


@pytest.mark.parametrize("in_flight", [1, 2])
@settings(max_examples=25)
@given(
    requests=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=25),
    changes=st.lists(st.none() | st.tuples(st.integers(1, 8), st.integers(8, 64)), max_size=40),
)
def test_whatever_is_changed_whenever_every_request_gets_all_its_tokens(
    lone: Any,
    configs: dict[int, Any],
    in_flight: int,
    requests: list[tuple[int, int]],
    changes: list[tuple[int, int] | None],
) -> None:
    scheduler = lone.scheduler_of(lone.live.LiveScheduler, configs[in_flight])
    made = [
        lone.add(scheduler, f"{number}", prompt=prompt, tokens=tokens)
        for number, (prompt, tokens) in enumerate(requests)
    ]
    iterations: deque[Any] = deque()
    for turn in itertools.count():
        change = changes[turn] if turn < len(changes) else None
        if change is not None:
            scheduler._cells["max_num_seqs"], scheduler._cells["max_num_batched_tokens"] = change
        before, _ = scheduler.get_request_counts()
        iteration = lone.schedule(scheduler)
        running, _ = scheduler.get_request_counts()
        cells = scheduler._cells[0]
        assert running <= max(before, cells["max_num_seqs"])
        assert iteration.output.total_num_scheduled_tokens <= cells["max_num_batched_tokens"]
        assert not iteration.output.preempted_req_ids
        iterations.append(iteration)
        if len(iterations) == in_flight:
            lone.compute(scheduler, iterations.popleft())
        if not scheduler.has_requests():
            break
        assert turn < 10_000
    assert [each.num_output_tokens for each in made] == [tokens for _, tokens in requests]


def test_where_vllm_knows_one_limit_it_is_never_below_what_runs(
    lone: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in vLLM 0.30."""
    seen: list[int] = []
    ends = scheduler._update_after_schedule

    def last_part_of_schedule(output: Any) -> None:
        seen.append(scheduler.max_num_running_reqs)
        ends(output)

    monkeypatch.setattr(scheduler, "_cap", "max_num_running_reqs")
    monkeypatch.setattr(scheduler, "_update_after_schedule", last_part_of_schedule)
    for number in range(6):
        lone.add(scheduler, str(number), prompt=10, tokens=2 + 2 * (number % 2))
    lone.step(scheduler)  # six run
    scheduler._cells["max_num_seqs"] = 4
    lone.step(scheduler)  # three of them have ended after this
    lone.step(scheduler)
    assert seen == [8, 6, 4]


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_with_it_the_socket_is_there_until_shutdown(
    lone: Any, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tuner.sock"
    monkeypatch.setenv("TUNER_LIVE_SOCKET", str(path))
    made = lone.scheduler_of(lone.live.LiveScheduler, config)
    state = control.ask(path, 3, "a test")
    assert (state.max_num_seqs, state.built) == (3, 8)
    assert state.arguments["kv_cache_dtype"] == "auto"
    made.shutdown()
    wait_until(lambda: "tuner-live" not in threads())
    assert not path.exists()


def test_a_control_that_cannot_be_leaves_the_server_as_it_is(
    lone: Any, config: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TUNER_LIVE_SOCKET", "/none/there/tuner.sock")
    made = lone.scheduler_of(lone.live.LiveScheduler, config)
    assert "live control failed: FileNotFoundError" in caplog.text
    request = lone.add(made, "a", prompt=5, tokens=3)
    while made.has_requests():
        lone.step(made)
    assert request.num_output_tokens == 3
    made.shutdown()
