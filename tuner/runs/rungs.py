"""The rungs of the ladder as they were measured: which replays count, and what they give. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.replay.device_use import device_use, disturbance
from tuner.replay.measure import Measurement, measure
from tuner.replay.records import Replay
from tuner.replay.soundness import OURS
from tuner.traffic.slo import Slo
from tuner.twin.windows import Block, Purpose, Trial

RUNGS: tuple[Purpose, ...] = ("ladder", "repeat", "drift_replay", "tie_break")
"""Purposes of trials whose windows were replayed whole, or cut because they had lost."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A trial of one of these purposes, with what it replayed."""

    trial: Trial
    replays: Mapping[int, Replay]
    """Number of a window → its replay."""

    def block(self, slo: Slo) -> Block:
        return Block(self.trial, measure(list(self.replays.values()), slo))


def measured(rungs: Sequence[Rung], slo: Slo) -> dict[int, Measurement]:
    """Return cap → its replays pooled: of each window the whole ones without a disturbance, or else
    the whole ones, or else all."""
    return {cap: measure(replays, slo) for cap, replays in _that_count(rungs).items()}


def cut_under_another(rungs: Sequence[Rung], slo: Slo) -> set[int]:
    """Return the caps of which a window was cut because of another SLO: what that cost them under
    this one was not measured."""
    return {
        cap
        for cap, replays in _that_count(rungs).items()
        if any(one.is_cut_under_another(slo) for one in replays)
    }


def _that_count(rungs: Sequence[Rung]) -> dict[int, list[Replay]]:
    of_window: dict[tuple[int, int], list[Replay]] = defaultdict(list)
    for rung in rungs:
        for number, replay in rung.replays.items():
            of_window[rung.trial.max_num_seqs, number].append(replay)
    of_cap: dict[int, list[Replay]] = defaultdict(list)
    for cap, number in sorted(of_window):
        replays = of_window[cap, number]
        whole = [one for one in replays if not one.cut]
        calm = [one for one in whole if not is_disturbed(one)]
        of_cap[cap] += calm or whole or replays
    return of_cap


def whole_windows(rungs: Sequence[Rung]) -> Iterator[tuple[int, Replay]]:
    """Yield (number of its window, replay) of all that was not cut."""
    for rung in rungs:
        yield from ((number, one) for number, one in rung.replays.items() if one.cut is None)


def best_attainments(rungs: Sequence[Rung], slo: Slo) -> dict[int, float]:
    """Return number of a window → the most that a rung attained in it."""
    best: dict[int, float] = {}
    for number, replay in whole_windows(rungs):
        best[number] = max(measure([replay], slo).attainment, best.get(number, 0.0))
    return best


def disturbed(rungs: Sequence[Rung]) -> set[int]:
    """Return the caps of which a window had something else at work when it was replayed last."""
    last = {rung.trial.max_num_seqs: rung.replays.values() for rung in rungs}
    return {cap for cap, replays in last.items() if any(map(is_disturbed, replays))}


def is_disturbed(replay: Replay) -> bool:
    return any(disturbances_of(replay))


def disturbances_of(replay: Replay) -> Iterator[str]:
    """Yield what besides the engine and our own client was at work during a replay."""
    yield from (one for one in replay.flaws if not one.startswith(OURS))
    if (other := disturbance(device_use([replay.device]))) is not None:
        yield other


def whole_rung_s(rungs: Sequence[Rung]) -> float | None:
    """Return how long a rung takes that is not cut short; None before there was one."""
    lengths_s = (
        sum(one.elapsed_s for one in rung.replays.values())
        for rung in rungs
        if not any(one.cut for one in rung.replays.values())
    )
    return max(lengths_s, default=None)
