"""Warn of what a sweep cannot promise: one sentence each, with what to do. Pure.

What is decided warns by itself of how sure it is (``twin.verdict``), and a trace of what it cannot
carry (``traffic.trace_warnings``).
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from tuner.runs.ladder import doubling
from tuner.runs.outcome import Conclusion
from tuner.runs.settings import SweepSettings
from tuner.traffic.trace_warnings import FEW_REQUESTS, UNIFORM_SPREAD
from tuner.traffic.workload import Workload
from tuner.twin.decide import rule
from tuner.twin.forecast import Forecast
from tuner.twin.simulation import attainment, tail_s
from tuner.twin.windows import Block

ROOM = 0.5
"""Share of the KV cache that is enough to hold what comes again, at any cap that may be chosen."""

SHORTENED = 0.9
"""Share of the step that was asked for: less than a tenth shorter is not worth a word."""

VARIED_SHAPE = 2.0
"""Shape of the gamma distribution of outputs that vary. Their standard deviation is 0.7 of their
mean: between the article's lengths (0.5) and those of public conversation traces (0.8)."""

TODAY_ALONE = (
    "the windows decide, so the choice is for today's load alone: watch it with tuner watch"
)


def where_the_twin_decides(view: Forecast, workload: Workload, cap: int) -> tuple[str, ...]:
    return _said(_few(workload), _tight_cache(view, cap))


def where_windows_decide(
    seen: Sequence[Block],
    left: Sequence[Block],
    cap: int,
    settings: SweepSettings,
    doubt: str | None,
) -> tuple[str, ...]:
    """Return the warnings where the windows decide. ``doubt`` is why the twin does not; ``left`` is
    what a queue leaves of what was ``seen`` in the windows."""
    today = TODAY_ALONE if settings.headroom > 1 else None
    return _said(_doubted(doubt), today, _queue(seen, left, cap))


def where_windows_were_lost(cut: Collection[int]) -> tuple[str, ...]:
    """Return the warning about the caps of which a replay was cut because of another SLO."""
    if not cut:
        return ()
    caps = " and ".join(map(str, sorted(cut)))
    warning = (
        f"what {caps} would serve within this SLO was not measured, because another one cut the "
        "replay short: sweep again with this --slo"
    )
    return (warning,)


def of_the_whole_run(conclusion: Conclusion, settings: SweepSettings) -> tuple[str, ...]:
    return _said(_uniform(conclusion, settings))


def shortened(asked_s: float, step_s: float) -> str | None:
    if step_s >= SHORTENED * asked_s:
        return None
    return (
        f"the budget shortened the steps from {asked_s:.0f}s to {step_s:.0f}s: less was seen than "
        "a larger --budget would show"
    )


def left_out(dropped: int, *, of: int, max_model_len: int) -> str | None:
    if not dropped:
        return None
    return (
        f"{dropped} of {of} requests are longer than max_model_len={max_model_len} and were left "
        "out: raise it to tune for them"
    )


def no_room_for(step: str) -> str:
    return f"the budget left no room for {step}: give a larger --budget"


def _said(*found: str | None) -> tuple[str, ...]:
    return tuple(one for one in found if one is not None)


def _few(workload: Workload) -> str | None:
    count = len(workload.twin_requests)
    if count >= FEW_REQUESTS:
        return None
    return (
        f"a tuning of {count} request{'s' * (count != 1)} says little: what is sure of them is "
        "not sure of the next ones; capture more"
    )


def _tight_cache(view: Forecast, cap: int) -> str | None:
    """Say that what requests find in the prefix cache may depend on the cap and the load; None
    where nothing is found there, or there is room."""
    traffic = view.loads.raised[0] if view.loads.raised else view.traffic
    if not traffic.cached_length.any():
        return None
    replay = view.replayed(traffic, cap)
    if replay.kv_usage_peak <= ROOM:
        return None
    return (
        f"what runs takes up to {replay.kv_usage_peak:.0%} of the KV cache: how much of the "
        "prompts that come again the rest holds depends on cap and load, and the twin takes what "
        "the windows showed; raise gpu_memory_utilization to be free of that"
    )


def _doubted(doubt: str | None) -> str | None:
    if doubt is None:
        return None
    return (
        f"{doubt}, so the windows that were replayed decide alone: they say less of the rest "
        "of the trace; a larger --budget or a quieter machine lets the twin decide"
    )


def _queue(seen: Sequence[Block], left: Sequence[Block], choice: int) -> str | None:
    """Say where a queue grows that no window shows: at the choice, or else nearest below it."""
    grown = {
        after.trial.max_num_seqs: (before.measurement.attainment, after.measurement.attainment)
        for before, after in zip(seen, left, strict=True)
        if after.measurement.attainment < before.measurement.attainment
    }
    cap = max((one for one in grown if one <= choice), default=None)
    if cap is None:
        return None
    windows, all_ = grown[cap]
    return (
        f"a queue grows at {cap} that no window shows, because each begins without it: "
        f"{windows:.0%} were served in time in the windows, about {all_:.0%} of all of the "
        "traffic would be; sweep with a longer --step"
    )


def _uniform(conclusion: Conclusion, settings: SweepSettings) -> str | None:
    """Say what outputs of one length hide: the same traffic with outputs that vary around it, at
    every cap, by the twin. None where lengths vary, or are too few to tell."""
    view = conclusion.view
    if view is None or not conclusion.by_twin:
        return None
    lengths = view.traffic.output_length
    if len(lengths) < FEW_REQUESTS or lengths.std() > UNIFORM_SPREAD * lengths.mean():
        return None
    rng = np.random.default_rng(settings.seed)
    drawn = rng.gamma(VARIED_SHAPE, lengths.mean() / VARIED_SHAPE, len(lengths))
    room = view.shape.max_model_len - view.traffic.input_length
    varied = np.clip(np.rint(drawn), 1, np.maximum(1, room)).astype(np.int64)
    traffic = replace(view.traffic, output_length=varied)
    caps, cap = doubling(settings.ceiling), conclusion.verdict.max_num_seqs
    replays = [view.replayed(traffic, each) for each in caps]
    shares = [attainment(traffic, each, view.slo) for each in replays]
    tails_s = list(map(tail_s, replays))
    other, at = caps[int(rule(shares, tails_s).choice)], caps.index(cap)
    before_s = float(view.choice.own.column("e2el_p99_s", cap)[0])
    return (
        f"every output is about {lengths.mean():,.0f} tokens long, and that misleads: {cap} serves "
        f"{view.choice.share(cap):.1%} within the SLO with a p99 E2EL of {before_s:,.2f}s; if "
        f"outputs of the same mean varied as production's do, {shares[at]:.1%} and "
        f"{tails_s[at]:,.2f}s, and {other} would be chosen: capture real lengths"
    )
