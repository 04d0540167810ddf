"""A step that would fill the memory ends, and what comes after it is not bounded."""

import resource
import sys

import pytest

from tuner.system.memory import at_most

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone holds such a bound")

HALF_A_GIB = 1 << 29


@pytest.mark.attack
def test_a_step_takes_no_more_than_it_may() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError), at_most(HALF_A_GIB):
        bytearray(2 * HALF_A_GIB)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    with at_most(2 * HALF_A_GIB):
        assert len(bytearray(HALF_A_GIB)) == HALF_A_GIB
