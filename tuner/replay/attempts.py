"""Replays a window until nothing but the engine shaped its numbers, RETRIES times more at most.

A replay is thrown away when our own requests left or were read late, and when the engine stood
still or compiled meanwhile.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tuner.engines.seam import Engine
from tuner.errors import EngineError, GeneratorLateError, ReadLateError, StoodStillError
from tuner.replay.generator_lag import check_generator, check_reading
from tuner.replay.plan import PlannedRequest
from tuner.replay.readings import Read, while_reading
from tuner.replay.records import Replay
from tuner.replay.replay import CutRule, Progress, replay
from tuner.traffic.window import Window

RETRIES = 3
"""Times that a replay is thrown away and made again. More of them bear with a busier machine; each
takes the time of a replay that says nothing."""

READ_LATE = 2
"""Attempts whose outputs are read late in the same way: a third one would be no better."""


async def replay_in_time(  # noqa: PLR0913 - what is sent where, when it is cut, and who is told
    plan: Sequence[PlannedRequest],
    engine: Engine,
    window: Window,
    *,
    max_num_seqs: int,
    rule: CutRule,
    read: Read | None,
    begun: Callable[[], None],
    late: Callable[[EngineError, float], None],
    name: str = "replay",
    progress: Progress | None = None,
) -> Replay:
    """Replay a window's plan with an empty prefix cache.

    ``begun`` is told of every attempt, ``late`` of every one that is thrown away with its elapsed
    seconds. Raises GeneratorLateError when the requests stay late, ReadLateError when their outputs
    do, StoodStillError when the engine stands still every time.
    """
    retries, reads_left = RETRIES, READ_LATE
    while True:
        begun()
        stalls = engine.stalls.count
        await engine.reset_prefix_cache()
        replaying = replay(
            plan,
            engine,
            max_num_seqs=max_num_seqs,
            scored_from_s=window.run_in_s,
            window_s=window.length_s,
            cut_rule=rule,
            progress=progress,
            name=name,
        )
        result, device = await while_reading(replaying, read)
        try:
            check_stalls(engine, stalls, what=f"max_num_seqs={max_num_seqs}", is_last=not retries)
            if rule.stop_after_s is None:  # else only its iterations count
                check_generator([result])
                check_reading(result, engine.facts)
                check_iterations(result)
        except (GeneratorLateError, StoodStillError) as error:
            late(error, result.elapsed_s)
            reads_left -= isinstance(error, ReadLateError)
            if not retries or not reads_left:
                raise
            retries -= 1
        else:
            return replace(result, device=device, weight=window.weight)


def check_iterations(result: Replay) -> None:
    """Refuse a replay in which nothing was computed, though some waited for it to its end.

    Raises StoodStillError: of such a window nothing can be said.
    """
    waited = any(one.outcome in {"cut", "aborted"} for one in result.records)
    if waited and not len(result.iterations) and not any(o.output_tokens for o in result.records):
        raise StoodStillError(
            f"max_num_seqs={result.max_num_seqs}: no iteration ended in {result.elapsed_s:.0f} s",
            hint="See what stops it: the machine's log and the driver's; then --resume.",
            seconds=result.elapsed_s,
        )


def check_stalls(engine: Engine, before: tuple[int, int], *, what: str, is_last: bool) -> None:
    """Refuse what was measured since ``before``, the engine's stalls as they were counted then.

    Raises StoodStillError when the engine has stood still since: the load is not the cause of that.
    So too when it has compiled, unless this was the last attempt: production would see it as well.
    """
    stalls, compiled = before
    if lengths_s := engine.stalls.lengths_s[stalls:]:
        raise StoodStillError(
            f"{what}: the engine stood still for {max(lengths_s):.0f} s",
            hint="See what stops it: the machine's log and the driver's; then --resume.",
            seconds=max(lengths_s),
        )
    if (told := engine.stalls.compiled[compiled:]) and not is_last:
        raise StoodStillError(
            f"{what}: the engine compiled meanwhile: {told[-1]}",
            hint="It is measured again.",
            seconds=0.0,
        )
