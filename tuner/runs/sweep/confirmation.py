"""The confirming replays: chosen, checked against the twin, and what stands then."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tuner.replay.replay import CutRule
from tuner.runs.bench import Bench, Build, ToReplay, Trial
from tuner.runs.events import ConfirmingWindow
from tuner.runs.evidence import Evidence
from tuner.runs.sweep.conclusion import Basis, Conclusion, by_windows, restated
from tuner.traffic.constants import HALF
from tuner.traffic.scaling import scale_load
from tuner.traffic.window import Window, unseen_window
from tuner.twin.check import Check, check_at_own_speed
from tuner.twin.front_end import FrontEnd, fit_front_end
from tuner.twin.samples import slowdowns

DRAIN_SHARE = 0.1
"""Of the time of a replay, for what is unfinished when the last request was sent."""

LEAST_WINDOW_S = 8.0
"""Less of a window, its run-in left out, confirms nothing."""


@dataclass(slots=True)
class Confirmation:
    """The choice on an engine of its own: at the recorded load, in a window that the ladder did not
    replay; with headroom, in the one that it did."""

    bench: Bench
    basis: Basis
    conclusion: Conclusion
    build: Build
    left_s: Callable[[], float]
    """Returns what is left of the budget."""

    affords_headroom: Callable[[], bool] = lambda: True

    def next_trial(self) -> Trial | None:
        """Return the next replay, as far as the budget goes."""
        settings, workload, evidence = self.basis.settings, self.basis.workload, self.basis.evidence
        cap = self.conclusion.verdict.max_num_seqs
        is_overloaded = self.conclusion.verdict.kind == "overloaded"
        window, load, purpose = self._window(), 1.0, "confirm"
        if evidence.confirming(purpose, cap):
            if settings.headroom <= 1.0 or is_overloaded or evidence.confirming("headroom", cap):
                return None
            if not self.affords_headroom():
                return None  # the twin says what it would be
            window, load, purpose = workload.window, settings.headroom, "headroom"
        if window is None or self._replays_left_s() < window.replay_s:
            return None
        sent = workload.sent_in(window)
        sent = sent if load == 1.0 else scale_load(sent, load, seed=settings.seed)
        floor = 0.0 if is_overloaded else HALF
        rule = CutRule(workload.slo, floor, budget_s=self.left_s())
        replay = ToReplay(window, sent, rule)
        return Trial(purpose=purpose, build=self.build, cap=cap, replay=replay)

    def _replays_left_s(self) -> float:
        """Return what is left of the budget for replays once the confirming engine is up."""
        is_up, build = self.bench.build == self.build, self.build
        start_s = self.basis.evidence.start_needed_s(build.purpose, build.max_num_seqs)
        return self.left_s() - (0.0 if is_up else start_s)

    def _window(self) -> Window | None:
        """Return what is replayed at the recorded load; None without time for it. It is on disk
        before the replay begins."""
        cap = self.conclusion.verdict.max_num_seqs
        chosen = chosen_at(self.basis.evidence, cap)
        if chosen is None:
            window, unseen = self._affordable()
            if window is None:
                return None
            chosen = ConfirmingWindow(max_num_seqs=cap, window=window, unseen=unseen)
            self.bench.journal.add(chosen)
        return chosen.window

    def _affordable(self) -> tuple[Window | None, bool]:
        """Return as much of a window as there is time for, and whether the ladder did not see it:
        where there is any of those."""
        workload, window, unseen = self.basis.workload, self.basis.workload.window, True
        if any(begun.window for begun in self.basis.evidence.begun()):
            other = unseen_window(workload.requests, window)
            window, unseen = other or window, other is not None
        most_s = (1 - DRAIN_SHARE) * self._replays_left_s() - window.run_in_s
        if most_s < min(window.length_s, LEAST_WINDOW_S):
            return None, unseen
        return replace(window, length_s=min(window.length_s, most_s)), unseen


def chosen_at(evidence: Evidence, cap: int) -> ConfirmingWindow | None:
    """Return what was chosen for the replay at a cap; None where nothing was."""
    events = evidence.journal.of(ConfirmingWindow)
    return next((event for event in events if event.max_num_seqs == cap), None)


# The check


def front_end_of(conclusion: Conclusion, evidence: Evidence) -> FrontEnd | None:
    """Return the front end of the server that confirmed the choice, by its probes alone where it
    replayed nothing. None where that was no server, or showed too little."""
    view, replays = conclusion.view, evidence.confirming("confirm", conclusion.verdict.max_num_seqs)
    if view is None or evidence.facts().engine != "serve" or not replays:
        return None if view is None else view.machine.front_end
    return fit_front_end(view.fitted.law, evidence.probed(), replays)


def check_of(conclusion: Conclusion, basis: Basis, front_end: FrontEnd | None) -> Check | None:
    """Return the twin against the confirming replay; None without a replay or without a twin.
    ``front_end`` is what its requests came through."""
    view, cap, slo = conclusion.view, conclusion.verdict.max_num_seqs, basis.workload.slo
    replays = basis.evidence.confirming("confirm", cap)
    if view is None or not replays:
        return None
    return check_at_own_speed(replays, slo, view.fitted.law, view.shape, front_end)


def after_check(
    conclusion: Conclusion, basis: Basis, check: Check | None, front_end: FrontEnd | None
) -> Conclusion:
    """Return the conclusion after the confirming replay.

    Where the scheduler model failed at the engine's own speed, the windows decide; without windows
    nothing does. What is required is compared behind the front end that the replay showed.
    """
    view, cap = conclusion.view, conclusion.verdict.max_num_seqs
    if view is None or check is None or not conclusion.by_twin:
        return conclusion
    if not check.failed:
        machine = replace(view.machine, front_end=front_end)
        if front_end is None:  # else its contention has how fast this engine was
            logs = [each.iterations for each in basis.evidence.confirming("confirm", cap)]
            seen = [slowdowns(log, view.fitted.law) for log in logs]
            machine = replace(machine, slowdown=np.concatenate((machine.slowdown, *seen)))
        return restated(conclusion, basis, view.again(machine))
    if conclusion.is_proven:
        return replace(conclusion, view=None, promised=None)
    doubt = f"the twin was wrong at the engine's own speed ({check.worst.words})"
    if basis.evidence.rungs():
        return by_windows(basis, view, doubt=doubt)
    reason = f"{cap} is the twin's choice: {doubt} in the replay that verifies it"
    verdict = replace(conclusion.verdict, kind="inconclusive", reason=reason)
    return replace(conclusion, verdict=verdict)
