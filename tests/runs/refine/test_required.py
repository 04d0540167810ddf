import math

import pytest

from tests.support.builders import flat, measurement
from tuner.runs.refine.scoring import broken_by
from tuner.traffic.requirements import parse_requirements


@pytest.mark.parametrize(
    ("ttft_s", "preemptions", "missed"), [(0.4, 0, -math.inf), (0.6, 0, 0.2), (0.6, 3, 3.0)]
)
def test_a_trial_that_breaks_what_is_required_counts_as_serving_too_few(
    ttft_s: float, preemptions: int, missed: float
) -> None:
    required = parse_requirements(
        ["p99 ttft <= 500ms", "preemptions == 0", "attainment >= 100% at headroom"], headroom=1.25
    )
    one = measurement(8, ttft_s=flat(ttft_s), preemptions=preemptions, attainment=0.9)
    assert broken_by(one, required) == pytest.approx(missed)
