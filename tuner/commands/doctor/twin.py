"""The twin held against one window on an engine that is up."""

import numpy as np

from tuner.engines.checks.check import MachineCheck, checked, skipped
from tuner.engines.checks.engine import OUTPUT, PROMPT, SMALL_CAP
from tuner.engines.seam import Engine, IterationLog
from tuner.replay.plan import PlannedRequest
from tuner.replay.replay import CutRule, replay
from tuner.traffic.slo import Slo
from tuner.twin.check import check_at_own_speed, driver, lag_s, observed
from tuner.twin.law import Segment, fit_law
from tuner.twin.simulation import shape_of
from tuner.twin.verdict_text import miss_in_words

REQUESTS = 60
BUSY = 0.8
"""Of the slots, in the mean, by the step time of a full batch."""


async def twin_check(engine: Engine, burst: IterationLog) -> MachineCheck:
    """Fit the law to a burst, replay a window at few slots, and say how many of its numbers the
    scheduler model foretold, at the speed that the engine had in it."""
    facts = engine.facts
    if facts.unmodelled:
        return skipped("twin", f"the windows decide here: {facts.unmodelled[0]}")
    ceiling = int(str(facts.arguments["max_num_seqs"]))
    cap = min(SMALL_CAP, ceiling)
    law = fit_law([Segment(burst, 0.0, 0)], max_num_seqs=ceiling).law
    apart_s = OUTPUT * float(law.decode_s[cap - 1]) / (BUSY * cap)
    gaps_s = np.random.default_rng(0).exponential(apart_s, REQUESTS)
    plan = [
        PlannedRequest(row, float(at_s), _prompt(row, facts.vocab_size), OUTPUT // 2 + row % OUTPUT)
        for row, at_s in enumerate(np.cumsum(gaps_s))
    ]
    window_s = plan[-1].planned_s
    tokens = facts.max_num_batched_tokens
    await engine.set_limits(max_num_seqs=cap, max_num_batched_tokens=tokens)
    await engine.reset_prefix_cache()
    seen = observed(
        await replay(
            plan,
            engine,
            max_num_seqs=cap,
            scored_from_s=0.0,
            window_s=window_s,
            cut_rule=CutRule(Slo(), floor=0.0),
            name="doctor-twin",
        )
    )
    shape = shape_of(facts, lag_s=lag_s([seen], law, shape_of(facts)))
    found = check_at_own_speed([seen], law, Slo(), driver(law, shape))
    return checked(
        "twin",
        f"{found.held} of {len(found.numbers)} numbers of a window of {window_s:.1f} s at {cap} "
        f"foretold; furthest off: {miss_in_words(found.worst)}",
        failed=found.failed,
        cure="Run it again with nothing else on the machine; if it stays, its sweeps' windows "
        "decide, not the twin.",
    )


def _prompt(row: int, vocab_size: int) -> list[int]:
    return [16 + (row * 37 + at) % (vocab_size - 16) for at in range(PROMPT)]
