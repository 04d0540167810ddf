"""The tolerances within which a promise counts as kept, by ``tuner verify`` and by alerts. Pure."""

from collections.abc import Mapping

TOLERANCE = 0.10
"""Share of a time above its promise: as much as a machine's speed may change before it is said to
have drifted (``DRIFT_LIMIT`` in ``twin/knee.py``)."""

SLACK_S: Mapping[str, float] = {"ttft": 0.005, "tpot": 0.0005, "itl": 0.0005, "e2el": 0.005}
"""A time so little longer is no broken promise, whatever its share."""

ATTAINMENT_TOLERANCE = 0.02
"""Attainment below its promise: a cap that serves so much less than the best is as right as it for
every practical purpose (``GOOD_ATTAINMENT`` in ``twin/objective.py``)."""
