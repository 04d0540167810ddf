"""Which cap is chosen, and which others are as right, by tables worked out by hand."""

from hypothesis import given
from hypothesis import strategies as st

from tuner.twin.objective import Shares, Values, choose, right_caps

CAPS = (1, 2, 4, 8, 16)
NEAR = st.tuples(
    st.floats(0.94, 1.0) | st.floats(0.0, 1.0), st.floats(0.0, 0.2) | st.floats(-3.0, 3.0)
)
TODAY = st.fixed_dictionaries(dict.fromkeys(CAPS, NEAR))
RAISED = st.fixed_dictionaries(dict.fromkeys(CAPS, st.floats(0.4, 1.0)))


@given(TODAY, RAISED, st.sampled_from([None, 50, 5000]))
def test_the_choice_is_right_and_within_the_tolerances(
    today: Values, raised: Shares, requests: int | None
) -> None:
    cap = choose(today, raised, requests=requests)
    assert cap in right_caps(today, raised, requests=requests)
    most = max(share for share, _ in today.values())
    assert today[cap][0] >= most - max(0.01, 2 / (requests or 1000))


def test_within_a_tolerance_is_equal_for_headroom_too() -> None:
    served = {8: (1.0, 0.0), 16: (0.992, 0.0)}
    assert choose(served) == 8
    assert choose(served, {8: 0.8, 16: 1.0}) == 16
    assert choose(served, {8: 0.3, 16: 0.4}) == 8
