"""The front end between users and a server's scheduler: HTTP, tokenizer, detokenizer. Pure.

Three numbers describe it. It takes CPU from the engine, whose iterations last longer: contention. A
request is under way for a fixed time before the scheduler has it, and every token for a fixed time
after it. The check of the confirming replay finds a front end that is too busy for its load.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.engines.scheduler.state import Floats, StepLaw
from tuner.engines.seam import IterationLog
from tuner.replay.records import ProbeResult, Requests
from tuner.traffic.constants import FEWEST_PASSAGES


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """A front end, as one server showed it. The defaults are none at all."""

    contention: float = 1.0
    """How many times as long an iteration takes as without it."""

    request_s: float = 0.0
    """Before the scheduler, for each request."""

    delivery_s: float = 0.0
    """After it, for each token."""


@dataclass(frozen=True, slots=True)
class Passages:
    """The times that some requests took in a front end, in seconds."""

    ahead_s: Floats
    """Before the scheduler had a lone request."""

    delivery_s: Floats
    """From the engine's first token to the client's."""

    tokens: float = 0.0
    decoding_s: float = 0.0
    """Of lone requests: tokens after the first, and the engine's time for them."""


def passages_of(requests: Requests) -> Passages:
    """Return the times of a replay's requests, where the engine exports its own. Under load the
    scheduler looks only between iterations, so what comes before it is not known."""
    known = requests[(requests["outcome"] == "ok") & ~np.isnan(requests["engine_first_s"])]
    return Passages(np.zeros(0), known["first_s"] - known["engine_first_s"])


def probed_passages(probes: Sequence[ProbeResult]) -> Passages:
    """Return the times of requests that were sent one at a time."""
    known = [probe for probe in probes if probe.passage_s]
    times = np.array([probe.passage_s for probe in known], dtype=float).reshape(-1, 6).T
    sent_s, queued_s, engine_first_s, engine_last_s, first_s, _ = times
    return Passages(
        queued_s - sent_s,
        first_s - engine_first_s,
        float(sum(probe.output_tokens - 1 for probe in known)),
        float((engine_last_s - engine_first_s).sum()),
    )


def contention_of(law: StepLaw, logs: Sequence[IterationLog]) -> float:
    """Return how many times as long iterations behind a front end took as the law says of the same
    work; at least 1, because nothing gets faster by a front end."""
    lawful_s = sum(float(law.durations_s(log).sum()) for log in logs)
    took_s = sum(float(log["duration_s"].sum()) for log in logs)
    return max(1.0, took_s / lawful_s) if lawful_s > 0 else 1.0


def probed_contention(law: StepLaw, probes: Sequence[Passages]) -> float:
    """Return the same of lone requests, which decode one sequence at a time."""
    lawful_s = sum(each.tokens for each in probes) * float(law.decode_s[1])
    took_s = sum(each.decoding_s for each in probes)
    return max(1.0, took_s / lawful_s) if lawful_s > 0 else 1.0


def fit_front_end(parts: Sequence[Passages], *, contention: float = 1.0) -> FrontEnd | None:
    """Return the front end of which these are the median times; None of too few requests."""
    delivery_s = np.concatenate([np.zeros(0), *(part.delivery_s for part in parts)])
    ahead_s = np.concatenate([np.zeros(0), *(part.ahead_s for part in parts)])
    if len(delivery_s) < FEWEST_PASSAGES:
        return None
    request_s = max(0.0, float(np.median(ahead_s))) if len(ahead_s) else 0.0
    return FrontEnd(contention, request_s, max(0.0, float(np.median(delivery_s))))
