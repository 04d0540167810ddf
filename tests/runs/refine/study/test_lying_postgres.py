"""A server of PostgreSQL's that lies spoils its study, and does nothing else."""

import pytest

from tests.runs.refine.study.test_hostile_storage import use
from tests.runs.refine.test_refine import SAID
from tests.support.lying_postgres import LIES, lying
from tests.support.processes import wait_until
from tuner.errors import RunError
from tuner.runs.refine.study import storage, storage_timeout

pytest.importorskip("psycopg")
pytestmark = [pytest.mark.attack, pytest.mark.timeout(60)]


@pytest.mark.parametrize("what", LIES)
def test_whatever_it_says_ends_in_one_line_and_is_heard_no_longer(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_timeout, "ANSWER_S", 0.5 if "without end" in what else 3.0)
    monkeypatch.setattr(storage, "STORAGE_TIMEOUT_S", 2)
    monkeypatch.setattr(storage, "PAUSE_S", 0.1)
    with lying(LIES[what]) as (url, clients):
        with pytest.raises(RunError) as refused:
            use(url)
        wait_until(lambda: not any(one.speaks for one in clients))
    for said in (str(refused.value), *SAID):
        assert "\n" not in said
        assert len(said) < 500
        assert "s3cret" not in said


def test_rows_without_end_are_cut_off_before_they_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage_timeout, "MOST_BYTES", 2**27)
    lie = LIES["rows without end"]
    with lying(lie) as (url, _), pytest.raises(RunError, match="it answers without end"):
        use(url)
