"""The scheduler model beside vLLM's own scheduler, iteration by iteration.

``TUNER_LOCKSTEP_CASES=200000 pytest -m vllm tests/outside/engine/test_lockstep.py`` plays as
many. The smallest traffic that shows a difference is written into the folder ``kept``, whose cases
are played first ever after: give it a name that says what it shows, and commit it.
"""

# ruff: noqa: ANN401 - vLLM's objects, and modules that import it

import importlib
import json
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.engines.scheduler.model import advance
from tuner.engines.scheduler.state import FINISHED, NO_NOISE, StepLaw, new_requests, new_scheduler
from tuner.engines.seam import IterationLog

pytestmark = pytest.mark.vllm

CASES = int(os.environ.get("TUNER_LOCKSTEP_CASES", "1000"))
"""Synchronous and asynchronous together."""

KEPT = Path(__file__).with_name("kept")

SLOTS = 8
ROOMY = 400
MOMENT_S = 1e-3
"""Shorter than any iteration."""

COMPARED = (
    *("decode_seqs", "prefill_seqs", "prefill_tokens", "context_tokens", "prefill_context"),
    *("running", "waiting", "kv_blocks_used", "preemptions", "recomputed_tokens"),
)


@dataclass(frozen=True)
class Case:
    """Traffic, and the limits of an engine."""

    is_async: bool
    traffic: list[tuple[int, int, int]]
    """When each arrives in seconds, its prompt tokens, its output tokens."""

    slots: int = SLOTS
    tokens: int = 128
    """``max_num_batched_tokens``."""

    blocks: int = ROOMY
    token_s: float = 0.0
    """An iteration takes a second, and so much more for each token."""

    @property
    def law(self) -> StepLaw:
        decode_s = np.array([1 + self.token_s * seqs for seqs in range(SLOTS + 1)])
        return StepLaw(decode_s, self.token_s, 0.0, 0.0, 0.0)


def cases(*, is_async: bool) -> st.SearchStrategy[Case]:
    traffic = st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 200), st.integers(1, 12)),
        min_size=1,
        max_size=20,
    )
    return st.builds(
        Case,
        is_async=st.just(is_async),
        traffic=traffic.map(sorted),
        slots=st.integers(1, SLOTS),
        tokens=st.sampled_from([128, 16, 64]),
        blocks=st.sampled_from([ROOMY, 30, 24, 18]),
        token_s=st.sampled_from([0.0, 0.013]),
    )


@dataclass(frozen=True)
class Played:
    """What one side did."""

    scheduled: list[dict[int, int]]
    """Of every iteration, which request had how many tokens."""

    preempted: list[set[int]]
    """Of every iteration, those that had not finished."""

    log: IterationLog


class Vllm:
    """vLLM's schedulers."""

    def __init__(self) -> None:
        self.lone: Any = importlib.import_module("tests.support.lone_scheduler")
        self._configs: dict[bool, Any] = {}

    def config(self, *, is_async: bool) -> Any:
        if is_async not in self._configs:
            config = self.lone.configured(max_num_seqs=SLOTS, max_num_batched_tokens=128)
            config.scheduler_config.async_scheduling = is_async
            self._configs[is_async] = config
        return self._configs[is_async]

    def play(self, case: Case, durations_s: list[float]) -> Played:
        """Run the traffic in the order of vLLM's EngineCore: with asynchronous scheduling it
        schedules a second batch before it waits for the first. Batches take what the model says,
        which decides when requests arrive."""
        lone, config = self.lone, self.config(is_async=case.is_async)
        with lone.measured(config, blocks=case.blocks) as (scheduler, page):
            page.set(case.slots, case.tokens)
            played = self._played(scheduler, case, durations_s)
            return Played(*played, page.take()[0])

    def _played(
        self, scheduler: Any, case: Case, durations_s: list[float]
    ) -> tuple[list[dict[int, int]], list[set[int]]]:
        lone, scheduled, preempted = self.lone, list[dict[int, int]](), list[set[int]]()
        coming = deque(enumerate(case.traffic))
        taking_s = iter(durations_s)
        under_way = deque[tuple[float, Any]]()
        now_s = busy_until_s = 0.0
        gone = set[int]()  # preempted since the last batch with anything in it
        while coming or under_way or scheduler.has_requests():
            while coming and coming[0][1][0] <= now_s:
                row, (_, prompt, tokens) = coming.popleft()
                lone.add(scheduler, str(row), prompt=prompt, tokens=tokens)
            if scheduler.has_requests():
                batch = lone.schedule(scheduler)
                output = batch.output
                gone |= {int(row) for row in output.preempted_req_ids or ()}
                if output.total_num_scheduled_tokens:
                    busy_until_s = max(now_s, busy_until_s) + next(taking_s, 1.0)
                    given = {int(row): each for row, each in output.num_scheduled_tokens.items()}
                    scheduled.append(given)
                    preempted.append(gone)
                    gone = set()
                under_way.append((busy_until_s, batch))
                if len(under_way) < 1 + case.is_async:
                    continue
            if under_way:
                end_s, batch = under_way.popleft()
                now_s = max(now_s, end_s)
                lone.compute(scheduler, batch)
            else:
                now_s = coming[0][1][0]
        return scheduled, preempted


@pytest.fixture(scope="module")
def vllm() -> Iterator[Vllm]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")  # two batches under way
        yield Vllm()


def model(case: Case) -> tuple[Played, list[set[int]]]:
    """Play the same in the model, an iteration at a time; return besides who had finished when each
    was scheduled. vLLM keeps one block for itself."""
    arrivals, prompts, tokens = (np.array(column) for column in zip(*case.traffic, strict=True))
    scheduler = new_scheduler(
        max_num_seqs=case.slots,
        max_num_batched_tokens=case.tokens,
        block_size=16,
        kv_blocks=case.blocks - 1,
        async_scheduling=case.is_async,
        reserves_prompts=True,
        rows=len(case.traffic),
        log_length=20_000,
    )
    requests, state = scheduler.requests, scheduler.state[0]
    requests[:] = new_requests(arrivals.astype(float), prompts, tokens)
    state["rows"] = len(case.traffic)
    scheduled, preempted, finished = [], [], []
    while state["in_flight"] or state["arrived"] < state["rows"]:
        before = requests["preemptions"].copy()
        begin_s = state["end"] if state["in_flight"] else arrivals[state["arrived"]]
        advance(scheduler, case.law, NO_NOISE, begin_s + MOMENT_S, False)
        if state["in_flight"]:
            given = np.flatnonzero(requests["scheduled"]).tolist()
            scheduled.append({row: int(requests["scheduled"][row]) for row in given})
            preempted.append(set(np.flatnonzero(requests["preemptions"] > before).tolist()))
            finished.append(set(np.flatnonzero(requests["status"] == FINISHED).tolist()))
    return Played(scheduled, preempted, scheduler.log[: state["logged"]]), finished


def in_lockstep(vllm: Vllm, case: Case) -> None:
    ours, finished = model(case)
    here = vllm.play(case, ours.log["duration_s"].tolist())
    assert ours.scheduled == here.scheduled
    still = [each - gone for each, gone in zip(here.preempted, finished, strict=True)]
    assert ours.preempted == still
    for name in COMPARED:
        assert ours.log[name].tolist() == here.log[name].tolist(), name


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_what_was_different_once_is_no_more(vllm: Vllm, path: Path) -> None:
    given = json.loads(path.read_text())
    in_lockstep(vllm, Case(**{**given, "traffic": [tuple(each) for each in given["traffic"]]}))


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_model_schedules_as_vllm_does(vllm: Vllm, is_async: bool) -> None:
    @settings(max_examples=CASES // 2)
    @given(case=cases(is_async=is_async))
    def played(case: Case) -> None:
        try:
            in_lockstep(vllm, case)
        except AssertionError:  # the last one that hypothesis tries is the smallest
            name = f"new-{'async' if case.is_async else 'sync'}.json"
            KEPT.joinpath(name).write_text(json.dumps(asdict(case)) + "\n")
            raise

    played()
