"""Take a part of a trace by the length of its requests or their server; by time: ``stream``."""

import dataclasses

from tuner.errors import TraceError
from tuner.trace.trace import Trace, digest


def drop_longer(trace: Trace, *, max_model_len: int) -> Trace:
    """Return the requests whose prompt and output fit; count the others as ``over_max_model_len``.

    Longer ones are never clipped: that would be other traffic. Raises TraceError when none fits.
    """
    kept = tuple(
        request
        for request in trace.requests
        if request.input_length + max(request.output_length, *request.output_lengths, 0)
        <= max_model_len
    )
    if not kept:
        raise TraceError(
            f"every request is longer than {max_model_len} tokens",
            hint="Use a model with a longer context.",
        )
    over = len(trace.requests) - len(kept)
    if not over:
        return trace
    header = dataclasses.replace(
        trace.header,
        rows_kept=len(kept),
        dropped=trace.header.dropped | {"over_max_model_len": over},
    )
    return Trace(header, kept, digest(kept, header.block_size), trace.warnings)


def only_replica(trace: Trace, replica: int) -> Trace:
    """Return what one of the recorded servers got. Raises TraceError where it got nothing."""
    kept = tuple(request for request in trace.requests if request.replica == replica)
    if not kept:
        known = sorted({one.replica for one in trace.requests if one.replica is not None})
        numbers = ", ".join(map(str, known[:20])) or "none"
        raise TraceError(f"no request of replica {replica}", hint=f"Replicas there: {numbers}.")
    header = dataclasses.replace(
        trace.header,
        replicas=1,
        rows_read=len(kept),
        rows_kept=len(kept),
        dropped={},
        notes=(*trace.header.notes, f"replica {replica}"),
    )
    return Trace(header, kept, digest(kept, header.block_size), trace.warnings)
