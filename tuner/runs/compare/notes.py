"""Notes on an approach, in words. Pure."""

from collections.abc import Mapping

from tuner.runs.compare.comparison import Numbers
from tuner.runs.compare.ratios import Ratio


def note_against(found: Mapping[str, Ratio], title: str) -> tuple[str, ...]:
    """Say how an approach compares with another one."""
    words = {"requests_per_s": "req/s", "e2el_p95": "p95 E2EL", "tpot_p95": "p95 TPOT"}
    parts = [f"{shown_ratio(found[what])} {word}" for what, word in words.items() if what in found]
    return (f"against {title}: {', '.join(parts)}",) if parts else ()


def shown_ratio(ratio: Ratio) -> str:
    """Return a ratio with its interval in a few characters: ``1.82x (1.64-2.01)``."""
    if ratio.low is None or ratio.high is None:
        return f"{shown_number(ratio.value)}x"
    return f"{shown_number(ratio.value)}x ({shown_number(ratio.low)}-{shown_number(ratio.high)})"


def shown_number(value: float) -> str:
    """Return three significant digits, of small numbers two after the point."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def notes_on(one: Numbers, *, alone: Numbers | None) -> tuple[str, ...]:
    """Return what was seen of an approach; ``alone`` is one worker, where this is two of them."""
    found = []
    if one.unfinished:
        found.append(
            f"served {one.requests_per_s:.2f} of {one.offered_rps:.2f} req/s: "
            f"{_share(one.unfinished, one.requests)} unfinished at the end"
        )
    if one.failed:
        found.append(f"{_share(one.failed, one.requests)} failed: {'; '.join(one.failures)}")
    if one.held_mean_s and one.e2el_mean_s and one.held_mean_s >= 0.01 * one.e2el_mean_s:
        found.append(
            f"head of line: finished requests waited {_shown(one.held_mean_s)} for their batch"
        )
    if one.transfer_s is not None:
        found.append(
            f"queue: {_shown(one.transfer_s.mean)} a request to pickle and transfer "
            f"(p95 {_shown(one.transfer_s.p95)})"
        )
    if alone is not None and one.iteration_s and alone.iteration_s:
        found.append(
            f"contention: an iteration took {one.iteration_s / alone.iteration_s:.2f} times as "
            "long as one worker's alone"
        )
    if one.queue_mean_s is not None and one.e2el_mean_s:
        share = one.queue_mean_s / one.e2el_mean_s
        if share >= 0.05:
            found.append(
                f"finished requests waited {_shown(one.queue_mean_s)} before the engine began"
            )
    return tuple(found)


def _share(part: int, whole: int) -> str:
    """Return a share in percent; never 0 % of something, nor 100 % of less than all."""
    if 0 < part < whole:
        return f"{min(99.0, max(0.1, 100 * part / whole)):.2g}%"
    return f"{part / whole:.0%}"


def _shown(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
