"""Try what Optuna by itself makes of runs that are killed, held up or begin the same.

    python scripts/try_heartbeat.py

Two to four processes share a study, and their trials measure nothing for a while. A line for each
case says what became of it; docs/decisions/0014-study-storage.md says what that means. Takes three
minutes.
"""

import json
import multiprocessing
import os
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages import RetryHeartbeatStaleTrialCallback as Retry
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import Trial

from tuner.errors import RunError
from tuner.runs.refine.knobs import CAP, TOKENS, Knob, Space
from tuner.runs.refine.study.storage import _FileLock, opened
from tuner.runs.refine.study.study import Study

HEARTBEAT_S, GRACE_S = 1, 2
MOMENT_S, LONG_S = 0.2, 600.0
TRIALS, AT_ONCE = 12, 4
SPACE = Space(
    (Knob(CAP, (4, 8, 12, 16, 20, 24), ""), Knob(TOKENS, (512, 1024, 2048, 4096), "")),
    {CAP: 8, TOKENS: 1024},
    (),
)

Act = Callable[[optuna.Study, Callable[[Trial], float], int], None]


def database(folder: Path) -> BaseStorage:
    warnings.simplefilter("ignore")  # both are experimental
    return RDBStorage(
        f"sqlite:///{folder}/study.db",
        heartbeat_interval=HEARTBEAT_S,
        grace_period=GRACE_S,
        heartbeat_stale_trial_callback=Retry(max_retry=3),
    )


def journal(folder: Path) -> BaseStorage:
    return JournalStorage(JournalFileBackend(f"{folder}/study.log"))


def optimize(study: optuna.Study, objective: Callable[[Trial], float], trials: int) -> None:
    study.optimize(objective, n_trials=trials)


def ask_and_tell(study: optuna.Study, objective: Callable[[Trial], float], trials: int) -> None:
    for _ in range(trials):
        trial = study.ask()
        study.tell(trial, objective(trial))


def study_in(open_: Callable[[Path], BaseStorage], folder: Path, seed: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        storage=open_(folder),
        study_name="one",
        sampler=TPESampler(seed=seed, n_startup_trials=4, multivariate=True, constant_liar=True),
        load_if_exists=True,
    )


def run(  # noqa: PLR0913, PLR0917 - who does what, where, and for how long
    name: str,
    open_: Callable[[Path], BaseStorage],
    act: Act,
    folder: Path,
    trials: int,
    length_s: float,
) -> None:
    """Try so many configurations, each for so long; write down what is begun and measured."""

    def objective(trial: Trial) -> float:
        what = [trial.suggest_int("cap", 0, 5), trial.suggest_int("tokens", 0, 3)]
        note(folder, event="begun", by=name, trial=trial.number, what=what)
        time.sleep(length_s)
        note(folder, event="measured", by=name, trial=trial.number, what=what)
        return float(what[0])

    try:
        act(study_in(open_, folder, seed=ord(name[0])), objective, trials)
    except Exception as error:  # noqa: BLE001 - that is what is asked
        note(folder, event="raised", by=name, what=f"{type(error).__name__}: {error}")


def tuner_run(name: str, folder: Path, trials: int) -> None:
    """As many trials as ``run``, in tuner's study: none that others are at or have measured."""
    study = Study(
        f"sqlite:///{folder}/study.db", "one", SPACE, aims=1, seed=ord(name[0]), run=name,
        machine="one", warn=print,
    )  # fmt: skip
    for _ in range(trials):
        asked = study.ask()
        if asked.configuration in study.tried() or not study.claim(asked, within_s=60.0):
            study.fail(asked, "known, or elsewhere")
            continue
        time.sleep(MOMENT_S)
        note(folder, event="measured", by=name, what=[*asked.configuration.values()])
        study.tell(asked, (0.01 * asked.configuration[CAP],), 0.0)
    study.close()


def note(folder: Path, **said: object) -> None:
    with (folder / "notes.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(said) + "\n")


def notes(folder: Path, event: str) -> list[dict[str, Any]]:
    file = folder / "notes.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [one for one in map(json.loads, lines) if one["event"] == event]


def begun(target: Callable[..., None], *args: object) -> Any:  # noqa: ANN401 - of its context
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)
    process.start()
    return process


def wait_for(folder: Path, event: str) -> None:
    while not notes(folder, event):
        time.sleep(0.02)


def states(open_: Callable[[Path], BaseStorage], folder: Path) -> list[str]:
    return [one.state.name for one in study_in(open_, folder, 0).get_trials()]


def killed(open_: Callable[[Path], BaseStorage], act: Act, folder: Path) -> str:
    """The first of two runs is killed in its trial; then nobody asks; then the other one does."""
    first = begun(run, "a", open_, act, folder, 1, LONG_S)
    wait_for(folder, "begun")
    time.sleep(2 * HEARTBEAT_S)
    first.kill()
    first.join()
    time.sleep(3 * GRACE_S)
    alone = states(open_, folder)
    begun(run, "b", open_, act, folder, 3, MOMENT_S).join()
    lost = notes(folder, "begun")[0]["what"]
    by = [(one["by"], one["trial"]) for one in notes(folder, "measured") if one["what"] == lost]
    return (
        f"{3 * GRACE_S} s later {alone[0]}; after three trials of another run "
        f"{states(open_, folder)[0]}; measured by {by or 'nobody'}"
    )


def held_up(folder: Path) -> str:
    """The first of two runs is stopped for longer than the grace, and goes on."""
    first = begun(run, "a", database, optimize, folder, 2, 3.0)
    wait_for(folder, "begun")
    os.kill(first.pid, signal.SIGSTOP)
    time.sleep(2 * GRACE_S)
    begun(run, "b", database, optimize, folder, 1, MOMENT_S).join()
    os.kill(first.pid, signal.SIGCONT)
    first.join()
    lost = notes(folder, "begun")[0]["what"]
    by = [one["by"] for one in notes(folder, "measured") if one["what"] == lost]
    raised = [f"{one['by']} ended by {one['what']}" for one in notes(folder, "raised")]
    return f"measured by {by}; {states(database, folder)}; {raised}"


def measured_before_it_was_killed(folder: Path) -> str:
    """A run is killed after its measurement was on disk, and before the study was told."""
    first = begun(run, "a", database, told_late, folder, 1, MOMENT_S)
    wait_for(folder, "measured")
    first.kill()
    first.join()
    time.sleep(2 * GRACE_S)
    begun(run, "b", database, optimize, folder, 1, MOMENT_S).join()
    return f"measured by {[(one['by'], one['what']) for one in notes(folder, 'measured')]}"


def told_late(study: optuna.Study, objective: Callable[[Trial], float], trials: int) -> None:
    def late(trial: Trial) -> float:
        found = objective(trial)
        time.sleep(LONG_S)
        return found

    study.optimize(late, n_trials=trials)


def twice(folder: Path, targets: Sequence[tuple[Callable[..., None], tuple[object, ...]]]) -> str:
    """Two runs search the same 24 configurations at the same time, in a study that is there."""
    study_in(database, folder, 0)
    for process in [begun(target, *args) for target, args in targets]:
        process.join()
    count = Counter(str(one["what"]) for one in notes(folder, "measured"))
    return f"{sum(count.values())} trials measured {len(count)} configurations"


def open_at(barrier: Any, opens: Callable[[Path], object], folder: Path) -> None:  # noqa: ANN401
    barrier.wait()
    try:
        opens(folder)
    except Exception as error:  # noqa: BLE001 - that is what is asked
        note(folder, event="raised", what=type(error).__name__)


def tuner_opens(folder: Path) -> None:
    opened(f"sqlite:///{folder}/study.db")


def opened_at_once(opens: Callable[[Path], object], folder: Path) -> str:
    """Processes open a database that is not there yet, at the same moment."""
    barrier = multiprocessing.get_context("spawn").Barrier(AT_ONCE)
    for process in [begun(open_at, barrier, opens, folder) for _ in range(AT_ONCE)]:
        process.join()
    raised = Counter(one["what"] for one in notes(folder, "raised"))
    return f"of {AT_ONCE} {sum(raised.values())} failed {dict(raised) or ''}".rstrip()


def hold(kind: type[Any], file: Path) -> None:
    lock = kind(file if kind is _FileLock else str(file))  # which lets go when nobody has it
    lock.acquire()
    note(file.parent, event="holds")
    time.sleep(LONG_S)


def locked(kind: type[Any], folder: Path, *, kills: bool) -> str:
    """A process holds the lock of a journal's file, and is killed or lives on."""
    file = folder / "study.log"
    file.touch()
    first = begun(hold, kind, file)
    wait_for(folder, "holds")
    if kills:
        first.kill()
        first.join()
    begin_s, what = time.monotonic(), "has it"
    lock = kind(file if kind is _FileLock else str(file))
    try:
        lock.acquire()
        lock.release()
    except RunError:
        what = "is refused"
    first.kill()
    first.join()
    return f"the next {what} {time.monotonic() - begin_s:.1f} s later"


def main() -> None:
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    both = [("a", database, optimize), ("b", database, optimize)]
    cases: dict[str, Callable[[Path], str]] = {
        "killed, optimize, database": lambda at: killed(database, optimize, at),
        "killed, ask and tell, database": lambda at: killed(database, ask_and_tell, at),
        "killed, optimize, journal file": lambda at: killed(journal, optimize, at),
        "stopped for longer than the grace": held_up,
        "killed when it had measured": measured_before_it_was_killed,
        "two at once, Optuna": lambda at: twice(
            at, [(run, (*one, at, TRIALS, MOMENT_S)) for one in both]
        ),
        "two at once, tuner": lambda at: twice(
            at, [(tuner_run, (name, at, TRIALS)) for name in ("a", "b")]
        ),
        "opened at once, Optuna": lambda at: opened_at_once(database, at),
        "opened at once, tuner": lambda at: opened_at_once(tuner_opens, at),
        "lock, killed, Optuna": lambda at: locked(JournalFileOpenLock, at, kills=True),
        "lock, killed, tuner": lambda at: locked(_FileLock, at, kills=True),
        "lock, lives, Optuna": lambda at: locked(JournalFileOpenLock, at, kills=False),
        "lock, lives, tuner": lambda at: locked(_FileLock, at, kills=False),
    }
    print(f"Optuna {optuna.__version__}, heartbeat {HEARTBEAT_S} s, grace {GRACE_S} s")
    for name, case in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name}: {case(Path(folder))}", flush=True)


if __name__ == "__main__":
    main()
