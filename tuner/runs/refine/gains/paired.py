"""What was found against the knee, in turns: only a gain that this proves replaces it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from tuner.replay.measure import Measurement, measure
from tuner.runs.refine.bench import Build, Done, TrialRunner, told
from tuner.runs.refine.gains.judge import has_room
from tuner.runs.refine.gains.proof import Paired, proof
from tuner.runs.refine.gains.ratio import Ratio, ratio
from tuner.runs.refine.gains.screen import Screen
from tuner.runs.refine.knobs import CAP, LIVE, TOKENS, Configuration, frees, number, restart_key
from tuner.runs.refine.objective import GOODPUT, OBJECTIVES, Objective
from tuner.traffic.slo import Slo
from tuner.traffic.workload import Workload

PAIRS, MOST_PAIRS = 4, 8
"""How many pairs are made at least, and where the budget has room for more; an even number."""

SIDES = ("refined", "knee", "knee", "refined")
"""Over and over: each first as often as second, so that a machine that drifts favours neither."""

COMPARING = ("refined", "knee")
"""Purposes of the two halves of a pair."""

LOOK_AT = 2
"""Pairs after which one that is clearly worse is given up."""

HOPELESS = 0.0025
"""How probable a gain is at most of which that look gives up. A tenth of what an interval of 95 %
leaves out on that side, or the look would make intervals miss more often than they say."""


async def compare(  # noqa: PLR0913 - what is compared, by what, on what
    bench: TrialRunner,
    one: Configuration,
    knee: Configuration,
    *,
    workloads: Sequence[Workload],
    objective: Objective,
    screens: Callable[[], Screen | None],
) -> Paired:
    """Replay both in turns: on one engine whose limits change live, or else each time on a fresh
    one, as no two starts are alike.

    ``workloads`` has what each pair replays; ``screens`` returns the twin of all that was replayed
    so far. Raises EngineError when engines keep failing.
    """
    sides, aim, slo = {"refined": one, "knee": knee}, objective.name, workloads[0].slo
    windows = {window for workload in workloads for window in workload.windows}
    bench.watcher.stage(
        f"comparing {told(one)} with the knee, in turns: {len(workloads)} pairs, "
        f"{len(windows)} windows of the trace"
    )
    wanted = 2 * len(workloads)
    while (
        done := _ended(bench, wanted, lambda done: _ratios(done, slo, screens(), sides), aim)
    ) is None:
        await bench.settle()
        place = sum(1 for half in _halves(bench) if bench.is_here(half))
        side = SIDES[place % len(SIDES)]
        build = _build(one, knee, turn=place, side=sides[side])
        await bench.trial(side, sides[side], workloads[place // 2], build)
    ratios = _ratios(done, slo, screens(), sides)
    frees_memory = frees(one, knee) and all(has_room(refined) for _, refined in _pairs(done, slo))
    return Paired(ratios, proof(objective, ratios, frees_memory=frees_memory), len(done) // 2)


def _ended(
    bench: TrialRunner,
    wanted: int,
    ratios: Callable[[Sequence[Done]], Mapping[str, Ratio]],
    aim: str,
) -> list[Done] | None:
    """Return the halves of a comparison that is over in one place, wherever; None while none is."""
    for worker in {half.worker: None for half in _halves(bench)}:
        done = [half for half in _halves(bench) if half.worker == worker]
        if len(done) >= wanted:
            return done[:wanted]
        if len(done) == 2 * LOOK_AT and _is_hopeless(ratios(done), aim):
            return done
    return None


def _ratios(
    done: Sequence[Done],
    slo: Slo,
    screen: Screen | None,
    sides: Mapping[str, Configuration],
) -> dict[str, Ratio]:
    """Return refined / knee of every aim over the pairs so far, luck taken out."""
    pairs = _pairs(done, slo)
    lucks = _lucks(done, screen, sides) if screen is not None else {}
    found = {}
    for name, aim in OBJECTIVES.items():
        twin = screen.says(aim, sides["refined"]) if screen is not None else None
        if (one := ratio(aim, pairs, twin, lucks.get(name, ()))) is not None:
            found[name] = one
    return found


def affordable(left_s: float, *, step_s: float, start_s: float) -> int:
    """Return how many pairs there is time for, each half of which takes so long a start besides;
    decided before the first one, so that none is made because of how the others came out.

    >>> [affordable(left_s, step_s=10.0, start_s=0.0) for left_s in (0.0, 119.0, 120.0, 9e9)]
    [4, 4, 6, 8]
    """
    two_s = 2 * 2 * (step_s + start_s)
    return max(PAIRS, min(MOST_PAIRS, 2 * int(left_s // two_s)))


def half_s(done: Iterable[Done], sides: Sequence[Configuration]) -> float:
    """Return how long half of a pair takes, by trials of its sides: of these each counts as much.

    An engine that is overloaded drains for longer than its windows are, on one side more than on
    the other. 0 where there was no trial of either.
    """
    took: dict[int, list[float]] = {}
    for one in done:
        if one.configuration in sides:
            place = sides.index(one.configuration)
            took.setdefault(place, []).append(sum(replay.elapsed_s for replay in one.replays))
    return fmean(map(fmean, took.values())) if took else 0.0


def is_live(one: Configuration, other: Configuration) -> bool:
    """Whether one engine can serve both."""
    return restart_key(one) == restart_key(other)


def _build(one: Configuration, knee: Configuration, *, turn: int, side: Configuration) -> Build:
    if is_live(one, knee):
        cap, tokens = (max(number(one[name]), number(knee[name])) for name in LIVE)
        return Build(cap, tokens, turn=1)
    return Build(number(side[CAP]), number(side[TOKENS]), turn=1 + turn)


def _halves(bench: TrialRunner) -> list[Done]:
    return bench.served(*COMPARING)


def _pairs(done: Sequence[Done], slo: Slo) -> list[tuple[Measurement, Measurement]]:
    """Return (knee, refined), pair by pair."""
    found = []
    for first, second in zip(done[::2], done[1::2], strict=False):
        by_side = {half.purpose: measure(half.replays, slo) for half in (first, second)}
        found.append((by_side["knee"], by_side["refined"]))
    return found


def _lucks(
    done: Sequence[Done], screen: Screen, sides: Mapping[str, Configuration]
) -> dict[str, list[tuple[float, float]]]:
    """Return per aim the luck of the knee and of the refined one, pair by pair; nothing where the
    twin cannot tell of both."""
    if not all(map(screen.tells, sides.values())):
        return {}
    aims = list(OBJECTIVES.values())
    found: dict[str, list[tuple[float, float]]] = {aim.name: [] for aim in aims}
    for first, second in zip(done[::2], done[1::2], strict=False):
        by_side = {
            half.purpose: screen.luck(sides[half.purpose], half.replays, aims)
            for half in (first, second)
        }
        for aim, here, there in zip(aims, by_side["refined"], by_side["knee"], strict=True):
            found[aim.name].append((there, here))
    return found


def _is_hopeless(ratios: Mapping[str, Ratio], aim: str) -> bool:
    return any(ratios[name].hope < HOPELESS for name in (GOODPUT.name, aim) if name in ratios)
