"""Optuna around the knee: what to try next, what became of it, and what each knob is worth.

The study is an opinion, the run's journal is the record: everything measured is in the journal
before the study is told, and can be told again to another storage. A storage that fails while the
run goes on is given up, and the study goes on in memory.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import optuna
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from tuner.errors import RunError
from tuner.runs.refine.knobs import Configuration, Space
from tuner.runs.refine.objective import KnownTrial
from tuner.runs.refine.study import storage as storages
from tuner.runs.refine.study.importance import Importance, importances
from tuner.runs.refine.study.parameters import (
    BEGUN,
    CONFIGURATION,
    ENDED_BY,
    HELD,
    MACHINE,
    RUN,
    attributes_of,
    configuration_of,
    deficits_of,
    distributions_of,
    params_of,
    told_of,
    trial_of,
    tried_of,
)
from tuner.runs.refine.study.storage_timeout import TimedStorage
from tuner.system.passwords import without_passwords

STARTUP = 4
"""Trials before the sampler trusts what it has seen."""

UNDECIDED_S, LOOK_S = 5.0, 0.02
"""How long a run may take from beginning a trial to holding it, before it counts as dead."""

_ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)

T = TypeVar("T")
Action = Callable[[optuna.Study], T]


@dataclass(frozen=True, slots=True)
class AskedTrial:
    """A trial under way."""

    configuration: dict[str, Any]
    trial: Trial


class Study:
    """A study in some storage, which others may share."""

    def __init__(  # noqa: PLR0913 - what is searched, and where it is kept
        self,
        storage: str,
        name: str,
        space: Space,
        *,
        aims: int,
        seed: int,
        run: str,
        machine: str,
        warn: Callable[[str], object],
    ) -> None:
        """Open the study, or make it; ``run`` names whose trials are ours, ``machine`` where they
        are measured, ``warn`` is told when the storage is given up. Raises RunError when it cannot
        be used, or when others measure for this study on another machine."""
        self._where, self._space, self._run, self._machine = storage, space, run, machine
        self._open, self._warn = partial(opened, name=name, aims=aims, seed=seed), warn
        self._aims = aims
        self._as_pruned = TrialState.PRUNED if aims == 1 else TrialState.FAIL  # as Optuna has it
        self._distributions = distributions_of(space)
        self.lost: str | None = None
        """Why the storage was given up; None while it serves."""

        self._mine: list[KnownTrial] = []
        """What this process has told: a study that goes on in memory begins with it."""

        self._seen: list[tuple[KnownTrial, str]] = []
        """What the storage held when it last answered, and whose that was."""

        self._odd = 0
        """Trials of the storage that are none of ours, as far as was said."""

        self._cut: list[Configuration] = []
        """What engines were seen to have cut, of everybody."""

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        connections = storages.Connections()
        self._timed = TimedStorage(connections.cut)
        with storages.asking(storage):
            self._storage = self._timed.ask(lambda: storages.opened(storage, connections))
        try:
            with storages.asking(storage):
                joining = partial(joined, self._open, self._storage, machine)
                self._study, trials = self._timed.ask(joining)
            self._check_machine()
        except RunError:
            self.close()
            raise
        self.is_new = not trials
        self.pruned = sum(
            ENDED_BY in one.user_attrs and one.user_attrs.get(RUN) == run for one in trials
        )
        """Trials of this run that were ended before they cost a whole replay."""

    def close(self) -> None:
        with suppress(RunError), storages.asking(self._where):  # what is lost needs no goodbye
            self._timed.leave(lambda: storages.closed(self._storage))

    def add(self, told: KnownTrial) -> None:
        """Add what was measured elsewhere: the profile's curve, or a run's journal."""
        if (frozen := self._frozen(told)) is not None:
            self._mine.append(told)
            self._write(lambda study: study.add_trial(frozen))

    def add_cut(self, configuration: Configuration, gain: float) -> None:
        """Add what an engine has cut and the study does not know of: it gains at most this."""
        attrs = {RUN: self._run, ENDED_BY: "engine"}
        ended = {"state": self._as_pruned, "intermediate_values": {0: gain}}
        if (frozen := trial_of(self._space, configuration, attrs, **ended)) is not None:
            self.pruned += 1
            self._write(lambda study: study.add_trial(frozen))

    def first(self, configuration: Configuration) -> None:
        """Have this tried before what the sampler has in mind."""
        if (params := params_of(self._space, configuration)) is not None:
            self._do(lambda study: study.enqueue_trial(params))

    def ask(self) -> AskedTrial:
        """Return what to try next, as a trial that counts as running. Raises RunError when another
        machine has joined the study."""

        def asked(study: optuna.Study) -> AskedTrial:
            trial = study.ask(self._distributions)
            configuration = configuration_of(self._space, trial.params)
            trial.set_user_attr(CONFIGURATION, configuration)
            trial.set_user_attr(RUN, self._run)
            return AskedTrial(configuration, trial)

        self._check_machine()
        return self._do(asked)

    def tell(
        self, asked: AskedTrial, gains: Sequence[float], deficit: float, *, has_room: bool = True
    ) -> None:
        trial = asked.trial

        def tell(study: optuna.Study) -> None:
            if trial.study is not study:  # the storage that knew it is lost
                return
            for name, value in attributes_of(told).items():
                trial.set_user_attr(name, value)
            if hasattr(trial, "set_constraint"):  # Optuna 5
                trial.set_constraint("slo", deficit)
            study.tell(trial, list(gains))

        told = KnownTrial(asked.configuration, tuple(gains), deficit, "engine", has_room)
        self._mine.append(told)
        if trial.study is not self._study and (frozen := self._frozen(told)) is not None:
            self._study.add_trial(frozen)
        self._write(tell)

    def prune(self, asked: AskedTrial, gain: float, why: str, *, by: str) -> None:
        """End a trial that has lost for certain: its first gain is at most this, by the replay that
        an ``engine`` cut or by the ``twin``."""

        def prune(study: optuna.Study) -> None:
            asked.trial.set_user_attr("why", why)
            asked.trial.set_user_attr(ENDED_BY, by)
            if self._as_pruned == TrialState.PRUNED:
                asked.trial.report(gain, 0)
            study.tell(asked.trial, state=self._as_pruned)

        self.pruned += 1
        self._end(asked, prune)

    def fail(self, asked: AskedTrial, why: str) -> None:
        """End a trial that says nothing: its engine failed, or it was tried before."""

        def fail(study: optuna.Study) -> None:
            asked.trial.set_user_attr("why", why)
            study.tell(asked.trial, state=TrialState.FAIL)

        self._end(asked, fail)

    def told(self) -> list[KnownTrial]:
        """Return all that ended with numbers, of everybody who shares the study."""
        return [told for told, _ in self._everybodys()]

    def others(self) -> list[KnownTrial]:
        """Return what other runs that share the study have measured."""
        return [
            told
            for told, run in self._everybodys()
            if run not in ("", self._run) and told.source == "engine"
        ]

    def tried(self) -> list[Configuration]:
        """Return what engines have replayed, whole or until it had lost, of everybody who shares
        the study."""
        whole = [told.configuration for told in self.told() if told.source == "engine"]
        return [*whole, *self._cut]

    def is_elsewhere(self, one: Configuration, *, within_s: float) -> bool:
        """Return whether another run has begun the same, at most so long ago: later it has died."""
        found = partial(begun_by_others, one=one, run=self._run, within_s=within_s)
        return bool(self._do(found))

    def claim(self, asked: AskedTrial, *, within_s: float) -> bool:
        """Begin a trial, unless another run has begun the same."""
        one, run = asked.configuration, self._run
        found = partial(claimed, trial=asked.trial, one=one, run=run, within_s=within_s)
        return bool(self._do(found))

    def abandon(self) -> None:
        """End this run's trials that an interruption left running: the journal knows of them."""

        def abandon(study: optuna.Study) -> None:
            for one in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if one.user_attrs.get(RUN) == self._run:
                    study.tell(one.number, state=TrialState.FAIL)

        self._write(abandon)

    def importances(self, aim: int) -> list[Importance]:
        """Return what each knob is worth for an aim, the most important first; empty where there is
        too little to say."""
        done = self._do(
            lambda study: study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        )
        return importances(done, aim)

    def _ask(self, action: Action[T]) -> T:
        """Ask the storage. Raises RunError when it fails, or does not answer: an answer that comes
        later still is of this study, and not of the one in memory."""
        study = self._study
        with storages.asking(self._where):
            return self._timed.ask(lambda: action(study))

    def _check_machine(self) -> None:
        """Raise RunError when the study is another machine's: of two that made it at the same
        moment, one finds the other's name."""
        theirs = self._do(lambda study: study.user_attrs.get(MACHINE))
        if theirs not in (None, self._machine):
            raise RunError(
                f"{without_passwords(self._where)}: this study is measured on "
                f"{str(theirs)[: storages.LONGEST_SAID]}, here it is "
                f"{self._machine}",
                hint="Gains on two machines make no study: give another --storage.",
            )

    def _everybodys(self) -> list[tuple[KnownTrial, str]]:
        def read(study: optuna.Study) -> tuple[int, list[tuple[KnownTrial, str]]]:
            trials = study.get_trials(deepcopy=False, states=_ENDED)
            for one in trials:
                if one.user_attrs.get(ENDED_BY) == "engine":
                    tried = tried_of(self._space, one)
                    if tried is not None and tried not in self._cut:
                        self._cut.append(tried)
            whole = [one for one in trials if one.state == TrialState.COMPLETE]
            told = [(told_of(self._space, one, aims=self._aims), one) for one in whole]
            odd = sum(each is None for each, _ in told)
            return odd, [(each, str(one.user_attrs.get(RUN, ""))) for each, one in told if each]

        odd, self._seen = self._do(read)
        if odd > self._odd:
            what = f"{odd} of its trials have no configuration or numbers of this search"
            self._warn(f"{without_passwords(self._where)}: {what}: they are left out")
            self._odd = odd
        return self._seen

    def _do(self, action: Action[T]) -> T:
        """Ask the storage; where it fails the study in memory."""
        if self.lost is None:
            try:
                return self._ask(action)
            except RunError as error:
                self._go_on_alone(error)
        return action(self._study)

    def _write(self, action: Action[None]) -> None:
        """Tell the storage what this process knows already; in vain where it fails."""
        if self.lost is not None:
            action(self._study)
            return
        try:
            self._ask(action)
        except RunError as error:
            self._go_on_alone(error)

    def _end(self, asked: AskedTrial, action: Action[None]) -> None:
        if asked.trial.study is self._study:
            self._write(action)

    def _go_on_alone(self, error: RunError) -> None:
        self.lost = str(error)
        self._study = self._open(InMemoryStorage())
        self._warn(f"{error}: this run goes on by its own journal, and --resume tells the storage")
        theirs = [(told, run) for told, run in self._seen if told not in self._mine]
        for told, run in (*theirs, *((told, self._run) for told in self._mine)):
            if (frozen := self._frozen(told, run=run)) is not None:
                self._study.add_trial(frozen)

    def _frozen(self, told: KnownTrial, *, run: str | None = None) -> FrozenTrial | None:
        attrs = {**attributes_of(told), RUN: self._run if run is None else run}
        return trial_of(self._space, told.configuration, attrs, values=list(told.gains))


def opened(storage: BaseStorage, name: str, *, aims: int, seed: int) -> optuna.Study:
    """Return the study of this name; a new one where there is none. Raises what storages raise."""
    how: dict[str, Any] = {"seed": seed, "multivariate": True, "constant_liar": True}
    if not hasattr(Trial, "set_constraint"):  # which Optuna 5 has in its place, and warns
        how["constraints_func"] = deficits_of
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is experimental is Optuna's affair
        sampler = TPESampler(n_startup_trials=STARTUP, **how)
    return optuna.create_study(
        storage=storage,
        study_name=name,
        directions=["maximize"] * aims,
        sampler=sampler,
        load_if_exists=True,
    )


def joined(
    open_: Callable[[BaseStorage], optuna.Study], storage: BaseStorage, machine: str
) -> tuple[optuna.Study, list[FrozenTrial]]:
    """Return the study and its trials; a new one is this machine's from now on."""
    study = open_(storage)
    trials = study.get_trials(deepcopy=False)
    if MACHINE not in study.user_attrs:
        study.set_user_attr(MACHINE, machine)
    return study, trials


@dataclass(frozen=True, slots=True)
class BegunTrial:
    """Another run's trial under way: since when, by the wall clock, and whether it is held."""

    begun: tuple[float, int]
    is_held: bool


def begun_by_others(
    study: optuna.Study, *, one: Configuration, run: str, within_s: float
) -> list[BegunTrial]:
    """Return other runs' trials with this configuration that have begun, at most so long ago: what
    is only asked for is nobody's yet."""
    since = _now()
    return [
        BegunTrial((begun, other.number), other.user_attrs.get(HELD) is True)
        for other in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        for begun in [other.user_attrs.get(BEGUN, 0.0)]
        if begun > since - within_s
        and other.user_attrs.get(RUN) != run
        and other.user_attrs.get(CONFIGURATION) == one
    ]


def claimed(
    study: optuna.Study, *, trial: Trial, one: Configuration, run: str, within_s: float
) -> bool:
    """Begin a trial; return False where another run has begun one with the same configuration.

    A storage cannot compare and set at once, so this takes two steps: whoever has begun a trial
    looks for others, and only then holds it. The earliest waits for those who came later to see
    that, or to hold it if they had looked before.
    """
    if trial.study is not study:  # the storage that knew it is lost
        return True
    ours = (_now(), trial.number)
    trial.set_user_attr(BEGUN, ours[0])
    until_s = time.monotonic() + UNDECIDED_S
    while others := begun_by_others(study, one=one, run=run, within_s=within_s):
        if any(other.is_held or other.begun < ours for other in others):
            return False
        if time.monotonic() > until_s:
            break
        time.sleep(LOOK_S)
    trial.set_user_attr(HELD, True)
    return True


def _now() -> float:
    return time.time()  # noqa: TID251 - the one clock that processes share
