"""`tuner verify`: what a promise is compared with, and when nothing can be concluded."""

import math
from pathlib import Path

import numpy as np
import pytest

from tests.support.profiles import profile
from tuner.commands.options import VerifyOptions
from tuner.commands.verify import check_gates, is_behind_server
from tuner.errors import GateError, UndecidedError
from tuner.replay.records import DEVICE
from tuner.replay.soundness import crowded
from tuner.runs.verify import Gate, Verified


def test_a_servers_front_end_is_in_what_it_is_held_to_and_in_no_engines() -> None:
    def behind(confirm: str, **options: object) -> bool:
        of = profile(confirm=confirm)
        path = Path("p.yaml")
        return is_behind_server(VerifyOptions(profile=path, trace=path, **options), of)  # type: ignore[arg-type]

    assert behind("server")
    assert behind("inproc", url="http://127.0.0.1:1")
    assert not behind("inproc")
    assert not behind("server", world=Path("world.yaml"))


def test_a_promise_that_looks_broken_while_others_take_the_cores_is_not_called_so() -> None:
    """Nine of ten seconds of the CPU were theirs."""
    beside = np.array([(1.0, math.nan, math.nan, 0.9, 0.0, *[math.nan] * 3)], DEVICE)
    broken = Gate("attainment", 0.01, 0.95, 0.93, False, "95% bound - 2 points")
    result = Verified((broken,), 60.0, crowded([beside]))
    with pytest.raises(UndecidedError, match="others took 90% of the CPU cores") as caught:
        check_gates(result)
    assert "Verify again when nothing else runs" in caught.value.hint
    with pytest.raises(GateError, match=r"met the SLO was 1\.0%"):
        check_gates(result._replace(taken=None))
