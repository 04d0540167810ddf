"""Which part of the trace each block replays: another one wherever the trace has it. Pure."""

from collections.abc import Sequence

from tuner.errors import TraceError
from tuner.trace import TraceRequest
from tuner.traffic import busiest_window
from tuner.window import RUN_IN_SHARE, Part, Window, choose_part


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
    window scores ``step_s`` at most, after a run-in of a quarter of that.
    Raises UsageError, TraceError.
    """
    length_s = step_s * (1 + RUN_IN_SHARE)
    part = choose_part(
        requests,
        "all" if asked == "busiest" else asked,
        length_s=length_s,
        busiest=busiest_window,
    )
    if part.length_s <= length_s:
        begins_s = [part.begin_s] * blocks
        length_s = part.length_s
    elif asked == "busiest":
        begins_s = _busiest(requests, part, length_s, blocks)
    else:
        room_s = part.length_s - length_s
        begins_s = [
            part.begin_s + (room_s * block / (blocks - 1) if blocks > 1 else room_s / 2)
            for block in range(blocks)
        ]
    run_in_s = length_s * RUN_IN_SHARE / (1 + RUN_IN_SHARE)
    return part, tuple(
        Window(begin_s + run_in_s, length_s - run_in_s, run_in_s) for begin_s in begins_s
    )


def _busiest(
    requests: Sequence[TraceRequest], part: Part, length_s: float, blocks: int
) -> list[float]:
    """Return where the busiest stretches begin, none within another; from the first again when
    there is no more room."""
    free = [part]
    found: list[float] = []
    while len(found) < blocks and free:
        best: tuple[int, float, Part] | None = None
        for gap in free:
            inside = [one for one in requests if gap.begin_s <= one.arrival_s < gap.end_s]
            if not inside:
                continue
            begin_s = max(
                gap.begin_s, min(busiest_window(inside, length_s)[0], gap.end_s - length_s)
            )
            tokens = sum(
                one.input_length + one.output_length
                for one in inside
                if begin_s <= one.arrival_s < begin_s + length_s
            )
            if best is None or tokens > best[0]:
                best = (tokens, begin_s, gap)
        if best is None:
            break
        _, begin_s, gap = best
        found.append(begin_s)
        free.remove(gap)
        sides = (Part(gap.begin_s, begin_s), Part(begin_s + length_s, gap.end_s))
        free += [side for side in sides if side.length_s >= length_s]
    return [found[block % len(found)] for block in range(blocks)]
