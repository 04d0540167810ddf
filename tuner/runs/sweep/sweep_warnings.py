"""The warnings about what a sweep cannot promise: one sentence each, with the cure. Pure.

A decision warns by itself of how sure it is (``twin.verdict``), and a trace of what it cannot carry
(``traffic.description``).
"""

from collections.abc import Sequence

from tuner.trace.trace import TraceRequest
from tuner.traffic.description import FEW_REQUESTS
from tuner.traffic.workload import keep_what_fits

SHORTENED = 0.9
"""Share of the step of the options: less than a tenth shorter is not worth a word."""


def no_headroom(headroom: float) -> str | None:
    if headroom <= 1:
        return None
    return "the windows decide, so the choice is for the recorded load: watch it with tuner watch"


def windows_decide(doubt: str | None) -> str | None:
    if doubt is None:
        return None
    return (
        f"{doubt}, so the windows that were replayed decide alone: they say less of the rest "
        "of the trace; a larger --budget or a quieter machine lets the twin decide"
    )


def few(count: int) -> str | None:
    if count >= FEW_REQUESTS:
        return None
    return (
        f"a tuning of {count} request{'s' * (count != 1)} says little: what is sure of them is "
        "not sure of the next ones; capture more"
    )


def shortened(wanted_s: float, step_s: float) -> str | None:
    if step_s >= SHORTENED * wanted_s:
        return None
    return (
        f"the budget shortened the steps from {wanted_s:.0f}s to {step_s:.0f}s: less was seen than "
        "a larger --budget would show"
    )


def fitting(
    requests: Sequence[TraceRequest], max_model_len: int
) -> tuple[list[TraceRequest], list[str]]:
    """Return the requests that an engine can take, and a warning where it cannot take all. Raises
    TraceError where it can take none."""
    kept, dropped = keep_what_fits(requests, max_model_len=max_model_len)
    text = (
        f"{dropped} of {len(requests)} requests are longer than max_model_len={max_model_len} and "
        "were left out: raise it to include them"
    )
    return kept, [text] * bool(dropped)
