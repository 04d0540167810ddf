"""The front end between users and a server's scheduler: HTTP, tokenizer, detokenizer. Pure.

It takes CPU from the engine, whose iterations last longer, and every request is under way for a
fixed time. The check of the confirming replay finds a front end that is too busy for its load.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.scheduler.state import StepLaw
from tuner.replay.records import ProbeResult, Replay
from tuner.traffic.constants import FEWEST_PASSAGES


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """A front end, as one server showed it. The defaults are none at all."""

    contention: float = 1.0
    """How many times as long an iteration takes as without it."""

    delay_s: float = 0.0
    """For which a request is under way outside of the engine."""


def fit_front_end(
    law: StepLaw, probes: Sequence[ProbeResult], replays: Sequence[Replay] = ()
) -> FrontEnd | None:
    """Return the front end of a server by its replays, or else by lone requests, which decode one
    sequence at a time; None of too few probes that know the engine's own times."""
    times = np.array([probe.passage_s for probe in probes if probe.passage_s]).reshape(-1, 6).T
    sent_s, queued_s, engine_first_s, engine_last_s, first_s, _ = times
    if len(sent_s) < FEWEST_PASSAGES:
        return None
    gaps = sum(probe.output_tokens - 1 for probe in probes if probe.passage_s)
    lawful_s, took_s = gaps * float(law.decode_s[1]), float((engine_last_s - engine_first_s).sum())
    if replays:
        lawful_s = sum(float(law.durations_s(each.iterations).sum()) for each in replays)
        took_s = sum(float(each.iterations["duration_s"].sum()) for each in replays)
    # nothing gets faster by a front end
    contention = max(1.0, took_s / lawful_s) if lawful_s > 0 else 1.0
    delay_s = float(np.median(queued_s - sent_s + first_s - engine_first_s))
    return FrontEnd(contention, max(0.0, delay_s))
