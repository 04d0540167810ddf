import numpy as np
import pytest

from tests.support.traces import request
from tuner.trace import columns as module
from tuner.trace.columns import columns_of, columns_of_batches
from tuner.trace.formats.columnar.batch import Batch
from tuner.trace.formats.reading.record import Row


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 2)
    monkeypatch.setattr(module, "GROWTH", 1)


def test_what_nobody_says_takes_no_memory_however_many_there_are() -> None:
    found = columns_of([request(i) for i in range(7)], block_size=16)
    assert np.isnan(found.e2e_s).all()
    assert (found.n.tolist(), found.replica.tolist()) == ([1] * 7, [-1] * 7)
    assert found.e2e_s.strides == found.n.strides == found.affinity.strides == (0,)


def test_what_one_of_many_says_is_kept_at_its_place() -> None:
    requests = [request(i, float(i)) for i in range(6)] + [request(6, 6.0, n=3, e2e_s=2.5)]
    found = columns_of([*requests, request(7, 7.0)], block_size=16)
    assert found.n.tolist() == [1, 1, 1, 1, 1, 1, 3, 1]
    assert np.flatnonzero(~np.isnan(found.e2e_s)).tolist() == [6]
    assert found.e2e_s[6] == 2.5


def test_batches_out_of_order_are_sorted_as_a_whole() -> None:
    rows = [Row(at_ms, 10 + i, 5, replica=i) for i, at_ms in enumerate((5000, 1000, 4000, 2000))]
    batches = [Batch.of(rows[:2]), Batch.of(rows[2:])]
    found, origin_ms = columns_of_batches(batches, block_size=16, absolute=True)
    assert origin_ms == 1000
    assert found.arrival_s.tolist() == [0.0, 1.0, 3.0, 4.0]
    assert found.replica.tolist() == [1, 3, 2, 0]
