from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import request
from tuner.trace.columns import columns_of
from tuner.trace.trace import TraceRequest
from tuner.traffic.constants import JITTER_S
from tuner.traffic.load import Router, route, scale_load

REQUESTS = [request(i, i / 10, e2e_s=1.0, session_id=f"s{i % 7}") for i in range(200)]

routers = pytest.mark.parametrize("router", get_args(Router))


@routers
def test_every_request_goes_to_one_replica_at_its_own_time(router: Router) -> None:
    parts = route(REQUESTS, replicas=3, router=router, seed=0)
    assert len(parts) == 3
    assert sorted((each for part in parts for each in part), key=lambda item: item.row) == REQUESTS
    assert all(part == sorted(part, key=lambda item: item.arrival_s) for part in parts)


def test_a_session_stays_where_it_began() -> None:
    parts = route(REQUESTS, replicas=3, router="session", seed=0)
    homes = [{each.session_id for each in part} for part in parts]
    assert sum(map(len, homes)) == 7


def test_least_goes_where_the_fewest_are_in_flight() -> None:
    long, short = 100.0, 0.5
    requests = [
        request(0, 0.0, e2e_s=long),
        request(1, 1.0, e2e_s=short),
        request(2, 2.0, e2e_s=short),
        request(3, 3.0, e2e_s=long, n=2),
        request(4, 4.0, e2e_s=short),
    ]
    parts = route(requests, replicas=2, router="least", seed=0)
    assert [[each.row for each in part] for part in parts] == [[0, 4], [1, 2, 3]]


# -- more and less load


@given(factor=st.floats(0.1, 3.0), seed=st.integers(0, 9))
def test_time_is_never_squeezed(factor: float, seed: int) -> None:
    scaled = scale_load(REQUESTS, factor, seed=seed)
    rows = {each.row: each for each in REQUESTS}
    assert [each.arrival_s for each in scaled] == sorted(each.arrival_s for each in scaled)
    assert all(0.0 <= each.arrival_s <= 19.9 for each in scaled)
    originals = [each for each in scaled if each.row in rows]
    assert all(original == rows[original.row] for original in originals)
    if factor >= 1:
        assert len(originals) == len(REQUESTS)


def test_added_requests_come_near_the_ones_they_copy_with_prompts_of_their_own() -> None:
    requests = [request(i, i * 100.0, input_length=100 + i) for i in range(50)]
    scaled = scale_load(requests, 1.5, seed=0)
    added = [each for each in scaled if each.row >= 50]
    assert len(added) == 25
    assert len({each.row for each in scaled}) == 75
    for each in added:
        assert abs(each.arrival_s - (each.input_length - 100) * 100.0) <= JITTER_S


def test_prefix_sharing_is_about_the_same_under_more_load() -> None:
    requests = [
        request(i, float(i), input_length=48, hash_ids=(1, 100 + i // 4, 1000 + i))
        for i in range(400)
    ]

    def share(some: list[TraceRequest]) -> float:
        columns = columns_of(some, block_size=16)
        assert columns.reused_tokens is not None
        return columns.reused_tokens / float(columns.input_length.sum())

    assert share(scale_load(requests, 1.25, seed=0)) == pytest.approx(share(requests), abs=0.03)
