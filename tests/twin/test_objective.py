"""Which caps are right, and which of them must be asked about the headroom."""

from hypothesis import given
from hypothesis import strategies as st

from tuner.twin.objective import Shares, Values, candidates, choose, deciding, right_caps

CAPS = (1, 2, 4, 8, 16)
NEAR = st.tuples(
    st.floats(0.94, 1.0) | st.floats(0.0, 1.0), st.floats(0.0, 0.2) | st.floats(-3.0, 3.0)
)
TODAY = st.fixed_dictionaries(dict.fromkeys(CAPS, NEAR))
RAISED = st.fixed_dictionaries(dict.fromkeys(CAPS, st.floats(0.4, 1.0)))


@given(TODAY, RAISED, st.sampled_from([None, 50, 5000]))
def test_what_is_right_depends_on_the_headroom_of_the_deciding_caps_alone(
    today: Values, raised: Shares, requests: int | None
) -> None:
    asked = {cap: raised[cap] for cap in deciding(today, requests=requests)}
    right = right_caps(today, raised, requests=requests)
    assert right_caps(today, asked, requests=requests) == right
    assert choose(today, raised, requests=requests) in right


def test_today_is_not_traded_for_headroom_however_few_requests_there_are() -> None:
    served = {8: (1.0, 0.0), 16: (0.99, 0.0)}  # one of 100 less
    assert candidates(served, requests=100) == [8]
    assert choose(served, {8: 0.8, 16: 1.0}, requests=100) == 8
