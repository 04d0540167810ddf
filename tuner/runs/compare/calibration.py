"""The calibration of a comparison: the reference engine's law, measured, and its twin."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tuner.engines.scheduler.state import StepLaw
from tuner.engines.seam import Engine
from tuner.errors import EngineError
from tuner.replay.probe import probe
from tuner.replay.ramp import DWELL, ramp, sizes_upto
from tuner.runs.compare.load_levels import mean_in_flight
from tuner.runs.engine_runner import FRESH_PROMPTS
from tuner.trace.trace import TraceRequest
from tuner.traffic.window import Window
from tuner.twin.law import Segment, fit_law
from tuner.twin.simulation import EngineShape, simulate, traffic_of

RAMPS = 2
"""Times up and down again. It makes 20 iterations of every size, from which number on a size counts
in the law."""

BUSIER = 3.0
"""Times an idle engine's iteration that one takes on the way: a guess."""


@dataclass(frozen=True, slots=True)
class ReferenceEngine:
    """The untuned engine, as its law lets the scheduler's model run it."""

    law: StepLaw
    shape: EngineShape
    max_num_seqs: int
    hash_block_size: int

    def in_flight(self, sent: Sequence[TraceRequest], window: Window) -> float:
        """Return the mean over the window of how many of these requests are in flight."""
        traffic = traffic_of(sent, hash_block_size=self.hash_block_size)
        found = simulate(traffic, self.law, self.shape, max_num_seqs=self.max_num_seqs)
        end_s = traffic.arrival_s + np.nan_to_num(found.e2el_s)  # a refused one does not stay
        return mean_in_flight(
            traffic.arrival_s,
            end_s,
            from_s=window.start_s,
            to_s=window.start_s + window.length_s,
        )


async def measure_law(  # noqa: PLR0913 - what is measured, on what, and who is told
    engine: Engine,
    requests: Sequence[TraceRequest],
    *,
    prompt: Callable[[TraceRequest], Sequence[int]],
    most_s: float,
    seed: int,
    begun: Callable[[float], None],
) -> StepLaw:
    """Return how long an iteration takes at every batch size that the engine has slots for.

    Every request fits the engine. ``begun`` is told how long it takes: as long as is needed to see
    every size often enough, ``most_s`` at most. Raises EngineError.
    """
    slots = int(str(engine.facts.arguments["max_num_seqs"]))
    found = await probe(requests, engine, prompt=prompt)
    await engine.reset_prefix_cache()
    tpot_s = float(np.median([one.tpot_s or one.ttft_s for one in found]))
    iterations = RAMPS * 2 * DWELL * len(sizes_upto(slots))
    length_s = min(most_s, iterations * BUSIER * tpot_s)
    begun(length_s)
    rows = itertools.count(FRESH_PROMPTS)
    log, begin_s = await ramp(
        requests,
        engine,
        ceiling=slots,
        length_s=length_s,
        tpot_s=tpot_s,
        prompt=lambda one: prompt(replace(one, row=next(rows), hash_ids=())),
        seed=seed,
    )
    if not len(log):
        raise EngineError(
            f"no iteration ended within {length_s:.0f}s of up to {slots} requests at a time",
            hint="Give a larger --budget, or a smaller --untuned.",
        )
    return fit_law([Segment(log, begin_s, engine=0)], max_num_seqs=slots).law


def as_json(reference: ReferenceEngine) -> dict[str, Any]:
    """Return it as a journal keeps it."""
    return {
        **asdict(reference),
        "law": [one if isinstance(one, float) else one.tolist() for one in reference.law],
    }


def from_json(content: Mapping[str, Any]) -> ReferenceEngine:
    decode_s, *others = content["law"]
    law = StepLaw(np.array(decode_s, float), *others)
    return ReferenceEngine(**{**content, "law": law, "shape": EngineShape(**content["shape"])})
