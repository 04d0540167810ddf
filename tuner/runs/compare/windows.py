"""The windows of a comparison: each block replays another one wherever the trace has it. Pure."""

from collections.abc import Sequence

from tuner.errors import TraceError
from tuner.trace.trace import TraceRequest
from tuner.traffic.arrivals import busiest_window
from tuner.traffic.window import RUN_IN_SHARE, Part, Window, choose_part


def check_arrivals(requests: Sequence[TraceRequest], *, source: str) -> None:
    """Raise TraceError for traffic that has no rate: one request, or all at the same time."""
    if requests[0].arrival_s == requests[-1].arrival_s:
        what = "one request" if len(requests) == 1 else f"all {len(requests)} requests at one time"
        raise TraceError(
            f"{source}: {what}: no traffic that could be thinned out or filled up to a load",
            hint="Capture some seconds of traffic.",
        )


def windows_of(
    requests: Sequence[TraceRequest], asked: str, *, step_s: float, blocks: int
) -> tuple[Part, tuple[Window, ...]]:
    """Return the part of the trace that ``asked`` names, and one window of it for each block.

    ``busiest``: the busiest stretch, then the busiest beside it, and so on; ``all`` and
    ``START+LEN``: evenly spread. They overlap, or are the same, where the part is too short. A
    window scores ``step_s`` at most, after a run-in of a quarter of that where there is room.
    Raises UsageError; TraceError for a window in which nothing arrives.
    """
    run_in_s = step_s * RUN_IN_SHARE
    length_s = step_s + run_in_s
    part = choose_part(
        requests,
        "all" if asked == "busiest" else asked,
        length_s=length_s,
        busiest=busiest_window,
    )
    if part.length_s <= length_s:
        run_in_s = part.length_s * RUN_IN_SHARE / (1 + RUN_IN_SHARE)
        only = Window(part.begin_s + run_in_s, part.length_s - run_in_s, run_in_s)
        windows = [only] * blocks
    elif asked == "busiest":
        windows = [
            Window(start_s, step_s, min(run_in_s, start_s - part.begin_s))
            for start_s in _busiest(requests, part, step_s, run_in_s, blocks)
        ]
    else:
        room_s = part.length_s - length_s
        shares = [block / (blocks - 1) for block in range(blocks)] if blocks > 1 else [0.5]
        windows = [
            Window(part.begin_s + room_s * share + run_in_s, step_s, run_in_s) for share in shares
        ]
    for one in windows:
        if not any(one.start_s <= each.arrival_s < one.start_s + one.length_s for each in requests):
            raise TraceError(
                f"nothing arrives in {one} of the trace",
                hint="Choose another --window, or give a longer --step and a larger --budget.",
            )
    return part, tuple(windows)


def _busiest(
    requests: Sequence[TraceRequest], part: Part, step_s: float, run_in_s: float, blocks: int
) -> list[float]:
    """Return where the busiest stretches start, none within another or its run-in; from the first
    again when there is no more room."""
    free = [part]
    found: list[float] = []
    while len(found) < blocks:
        best: tuple[int, float, Part] | None = None
        for gap in free:
            least_s = gap.begin_s if gap.begin_s == part.begin_s else gap.begin_s + run_in_s
            inside = [one for one in requests if least_s <= one.arrival_s < gap.end_s]
            if not inside:
                continue
            start_s = max(least_s, min(busiest_window(inside, step_s)[0], gap.end_s - step_s))
            tokens = sum(
                one.input_length + one.output_length
                for one in inside
                if start_s <= one.arrival_s < start_s + step_s
            )
            if tokens and (best is None or tokens > best[0]):
                best = (tokens, start_s, gap)
        if best is None:
            break
        _, start_s, gap = best
        found.append(start_s)
        free.remove(gap)
        sides = (Part(gap.begin_s, start_s - run_in_s), Part(start_s + step_s, gap.end_s))
        free += [side for side in sides if side.length_s >= step_s + run_in_s]
    return [found[block % len(found)] for block in range(blocks)]
