"""The constants that tune the decision, each with its reason.

Where a reason names a study, `scripts/study_worlds.py` counts right answers on simulated machines,
and `scripts/study_real.py` compares promises with real servers (docs/deciding.md).
"""

from typing import Literal

VerdictKind = Literal["knee", "plateau", "kv_bound", "not_reached", "overloaded", "inconclusive"]

# What is replayed

MIN_STEP_S = 6.0
"""A shorter step shows the engine at hardly any batch size."""

MAX_RUN_IN_S, RUN_IN_SHARE, SHORT_S = 15.0, 0.25, 1.0
"""The run-in is replayed and not scored, so that scoring starts with the engine as full as
production had it: a quarter of the window, at most 15 s. A shorter trace than SHORT_S is one burst
and has none."""

MIN_WINDOW_S = 5.0
"""A shorter one shows little; so long a one makes a short step last a little longer than asked."""

DRAIN_SHARE = 0.5
"""Most of a window's time that is kept for its last requests to end."""

NEAREST = 0.25
"""A window of so little of another's load cannot stand for it."""

LEAST_S, LEAST_PART_S = 1e-3, 1.0
"""Seconds of a stretch whose requests arrive at once; traffic that does has a rate over the second.
"""

LOADED = 1.5
"""Times as long that a request takes on a busy engine. A guess, for how long a window drains."""

MOST_TWIN_REQUESTS = 20_000
"""Requests that the twin replays: of a longer part the busiest stretch of so many."""

# What is asked of a request by default

TPOT_SLACK, TTFT_SLACK, QUEUE_SHARE = 2.0, 5.0, 0.5
"""Factors of a derived SLO over an idle engine: twice its TPOT; five times its TTFT plus half of
its median E2EL. From the study of stop rules on simulated worlds (docs/decisions)."""

# What counts as equal, and as right

EQUAL_ATTAINMENT, EQUAL_TAIL = 0.01, 1.05
"""Caps within these of the best count as equal to it: nobody tells them apart in production."""

GOOD_ATTAINMENT, GOOD_TAIL = 0.02, 1.10
"""An answer within these of the true best is right for every practical purpose."""

FEW_REQUESTS_APART = 2
"""So many more or less served are no difference, however few requests there are."""

HALF = 0.5
"""Attainment below which a cap does not serve a load."""

CONFIDENT, DEFENSIBLE = 0.95, 0.80
"""Shares of agreeing draws: below the first measure more, below the second it is inconclusive."""

OWN_CHOICE = 0.02
"""Share of the draws by which another cap must be right more often than the choice by the mean of
all draws: fewer is the noise of the draws themselves."""

BAD_SIDE = 0.95
"""Share of the draws that must meet a requirement: its bound is their quantile there."""

# Draws

DRAWS, PRINTED_DRAWS = 40, 100
"""While a run decides what to measure next, and for what is printed: with 40 order statistics
still have both ends of 95 %."""

WINDOW_DRAWS = 2000
"""Of windows, which cost nothing to draw."""

ENDS = (0.025, 0.975)

JITTERS, JITTER_S = 5, 2.0
"""Copies of a raised load, so that no prediction rests on one; how far an added request arrives
from its original. Squeezed time would always be optimistic about tails."""

START_SD = 0.08
"""By which a start of the engine, and the hour, move its speed; standard deviation of a logarithm,
from study_real on a machine that others use too (with 0.096 98 % of its intervals held)."""

SHARED_SPEED_SD = 0.04
"""Standard deviation of that machine's own log speed: START_SD is of it, and in proportion of a
machine whose speed varies less or more while it is measured."""

BELIEVED_SHARES = (0.1, 1.5)
"""Times START_SD that are believed of the quietest machine, and of the noisiest: one run cannot
show less, or more."""

GRID_S, SLOWDOWN_BLOCK_S = 2.5, 30.0
"""Grid on which the machine's speed is followed, and the time that stays together in a draw: its
slowdown is correlated over a minute."""

# The law

LAW_BLOCK_S = 20.0
"""Blocks of time with one speed each: long enough for a ramp to visit every batch size, short
beside the minute for which a machine's speed resembles itself."""

BELIEVED_BLOCKS, BELIEVED_SPEED_SHARE = 2, 0.4
"""Weight, in blocks, of what is believed of a machine's speed before it is measured: its log varies
by 0.4 of what the log of an iteration does (study_worlds: 0.25 to 0.4)."""

MIN_SPEED_SD = 0.002
"""No clock is steadier."""

MIN_ITERATIONS, FEWEST_ITERATIONS = 20, 5
"""Iterations that show where a knot of f lies; of the smallest batch size fewer do, because its
neighbors are all on one side."""

DENSE_KNOTS = 32
"""Above this batch size knots are at least 1/16 apart: f is smooth there."""

NEAR_ENOUGH = 17 / 16
"""Batches so little larger than the largest measured one are no guess: the distance of knots."""

HUBER, HUBER_ROUNDS = 1.345, 8
"""95 % efficient where the noise is normal (Huber, Robust Statistics, 1981)."""

FEWEST_PASSAGES = 5
"""Requests that show anything of a front end."""

# The check

ALARM = 1.63
"""A check fails with one number so many half-widths of 95 % off: z > 3.2."""

TTFT_OFF, TPOT_OFF = 1.35, 1.12
"""Factors within which TTFT and TPOT are at the engine's own speed, in 95 % of honest windows."""

RANK_ERRORS = 2.0
"""Standard errors by which the rank of a percentile may be off besides: where a queue begins to
form, two neighboring ranks are seconds apart, and which request came last into it is chance."""

LEAST_MS = {"ttft": 1.0, "tpot": 0.1, "e2el": 1.0}
"""Smaller differences are those of the clocks."""

# The windows, where the model does not know the engine

WINDOW_SDS = (0.01, 0.08)
"""Standard deviations of one block, of the attainment and of the log of a time: repeats at
one cap of a real engine on a shared machine vary by 8 to 9 %."""

# The machine

DRIFT_LIMIT, DRIFT_REFUSED = 0.10, 0.30
"""Change of the machine's speed that is reported, and one that makes no curve."""

SPEED_SD_LIMIT = 0.10
"""Variation of the machine's log speed from which on others must be at work."""

# A promise that is kept: ``tuner verify``, ``tuner watch`` and alerts

TOLERANCE = DRIFT_LIMIT
"""Share of a time above its promise, or of an iteration above its law: a machine whose speed
changes more has drifted."""

SLACK_S = {"ttft": 0.005, "tpot": 0.0005, "e2el": 0.005}
"""A time so little longer is no broken promise, whatever its share."""

ATTAINMENT_TOLERANCE = GOOD_ATTAINMENT
"""Attainment below its promise."""

# Words

KV_FULL = 0.95
"""Share of the KV cache from which on it is full: a few blocks are always in between."""

NEARLY_ALL = 0.95
"""Share of the offered tokens from which on nearly all of them are served."""

NO_CONFIDENCE = 0.005
"""Less is shown as 0.00."""

RISES = 1.05
"""More tokens by so much: the ceiling is not yet the end."""
