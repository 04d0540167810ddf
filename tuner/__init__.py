"""Find the right max_num_seqs for a vLLM server from the traffic that it really gets.

Thirteen rooms (the packages here), in the order of imports: a room imports only those above it,
with one exception, ``UPWARDS`` in tests/test_architecture.py. Each room's docstring says what comes
in, what goes out, and what it may touch.

    system    the operating system, made safe
    trace     requests as production saw them: read from any format, checked, cut and written
    capture   traffic recorded where it is, in a running server or out of Prometheus
    engines   everything that serves requests, behind one seam: vLLM, and a simulated machine
    traffic   a trace described before anything is run, and the part of it that is sent
    replay    a trace, sent again: open loop, on one clock, and what it cost
    twin      the forecast of every cap: what it would do, which to take, how sure that is
    profile   the serving profile: what to run, and all that it rests on
    runs      the long work: sweep, refine, compare, verify, on one machine or a cluster
    rollout   a profile put where it is deployed, and nothing else touched
    live      servers that are running: read, watched, and their limits changed
    views     what people see: a page of each result, on a terminal, as HTML, CSV or JSON
    commands  the command line: options, and what each command does with them

One walk through them. A row of a trace (trace/formats) becomes a request (trace/trace.py); a window
of requests (traffic/window.py) becomes a plan (replay/replay.py) that is replayed on an engine
(replay/replay.py, engines/seam.py). The engine's iterations become a step-time law (twin/law.py),
the law and vLLM's scheduler a twin that replays the whole trace at every cap (twin/simulation.py),
the twin a verdict (twin/verdict.py), the verdict a profile (profile/profile.py), and the profile a
few changed words in what is deployed (rollout/edit.py). runs/sweep/sweep.py is where all of that is
called, commands/sweep.py what calls it, and views/profile.py what is shown of it.

``cli.py`` is the entry and the one error boundary, ``errors.py`` all that is raised on purpose.

Scripts and notebooks use the names of ``__all__``; commands/api.py has them, and is imported when
one of them is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.commands.api import (
        TunerError,
        curve,
        engine_args,
        load_profile,
        summary,
        sweep,
        table,
    )

__all__ = [
    "TunerError", "curve", "engine_args", "load_profile", "summary", "sweep", "table",
]  # fmt: skip


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any of those
    """Import what is used: whoever only wants a part of tuner pays for that alone."""
    if name not in __all__:
        raise AttributeError(f"module 'tuner' has no attribute {name!r}")
    from tuner.commands import api  # noqa: PLC0415 - numpy

    return getattr(api, name)
