"""The study: seeded, shared, pruned, and refused where its storage or its machine is another."""

import fcntl
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support import postgres
from tests.support.places import ROOT
from tests.support.postgres import Server
from tuner.errors import RunError
from tuner.runs.refine.knobs import CAP, TOKENS, Knob, Space
from tuner.runs.refine.objective import KnownTrial
from tuner.runs.refine.study import storage, storage_timeout
from tuner.runs.refine.study.importance import FEWEST
from tuner.runs.refine.study.parameters import BEGUN, HELD
from tuner.runs.refine.study.study import Study, claimed

SPACE = Space(
    knobs=(
        Knob(CAP, (4, 8, 12, 16), ""),
        Knob(TOKENS, (512, 1024), ""),
        Knob("enable_prefix_caching", (False, True), ""),
    ),
    knee={CAP: 8, TOKENS: 1024, "enable_prefix_caching": True},
    left_out=(),
)
KNEE = dict(SPACE.knee)
SAID: list[str] = []
"""What studies warned of."""


def study(
    where: str, *, run: str = "run", machine: str = "one", aims: int = 1, name: str = "name"
) -> Study:
    return Study(where, name, SPACE, aims=aims, seed=0, run=run, machine=machine, warn=SAID.append)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "study.log")


def test_it_begins_with_what_the_profile_measured(file: str) -> None:
    one = study(file)
    assert one.is_new
    one.add(KnownTrial(KNEE, (0.0,), -0.01, "profile"))
    one.add(KnownTrial({**KNEE, CAP: 64}, (0.1,), 0.0, "profile"))  # outside the space
    assert one.told() == [KnownTrial(KNEE, (0.0,), -0.01, "profile")]


def test_what_is_to_be_tried_first_is_asked_first_and_told_is_kept(file: str) -> None:
    one = study(file)
    first = {CAP: 12, TOKENS: 512, "enable_prefix_caching": False}
    one.first(first)
    asked = one.ask()
    assert asked.configuration == first
    one.tell(asked, (0.05,), -0.01)
    assert study(file).told() == [KnownTrial(first, (0.05,), -0.01, "engine")]


def test_two_processes_share_it(file: str) -> None:
    ours, theirs = study(file, run="ours"), study(file, run="theirs")
    asked = theirs.ask()
    theirs.tell(asked, (0.2,), 0.0)
    assert [one.gains for one in ours.told()] == [(0.2,)]
    assert not study(file).is_new


def test_pruned_and_failed_trials_tell_no_numbers(file: str) -> None:
    one = study(file)
    one.prune(one.ask(), -0.3, "cut", by="engine")
    one.fail(one.ask(), "the engine died")
    assert one.told() == []
    assert one.pruned == 1


def test_what_others_pruned_and_measured_is_theirs(file: str) -> None:
    ours, theirs = study(file, run="ours"), study(file, run="theirs")
    theirs.prune(theirs.ask(), -0.3, "cut", by="engine")
    asked = theirs.ask()
    theirs.tell(asked, (0.2,), 0.0)
    ours.add(KnownTrial(KNEE, (0.0,), 0.0, "engine"))
    ours.prune(ours.ask(), -0.3, "cut", by="engine")
    assert [one.gains for one in ours.others()] == [(0.2,)]
    assert ours.pruned == study(file, run="ours").pruned == 1


def test_with_two_aims_what_has_lost_tells_no_numbers_and_is_counted_also_later(file: str) -> None:
    one = study(file, aims=2)
    one.prune(one.ask(), -0.3, "cut", by="engine")
    one.fail(one.ask(), "the engine died")
    one.tell(one.ask(), (0.1, -0.1), 0.0)
    assert [told.gains for told in one.told()] == [(0.1, -0.1)]
    assert one.pruned == study(file, aims=2).pruned == 1


@pytest.mark.parametrize("aims", [1, 2])
def test_what_an_engine_cut_was_tried_for_all_who_share_it_and_what_the_twin_ruled_out_was_not(
    file: str, aims: int
) -> None:
    ours, theirs = (study(file, run=run, aims=aims) for run in ("ours", "theirs"))
    cut, ruled_out, whole, failed = (theirs.ask() for _ in range(4))
    theirs.prune(cut, -0.3, "cut", by="engine")
    theirs.prune(ruled_out, -0.3, "the twin rules it out", by="twin")
    theirs.tell(whole, (0.2,) * aims, 0.0)
    theirs.fail(failed, "the engine died")
    assert ours.tried() == [whole.configuration, cut.configuration]
    assert theirs.pruned == 2
    assert ours.pruned == 0


def test_an_interrupted_runs_trials_are_ended_and_others_are_not(file: str) -> None:
    ours, theirs = study(file, run="ours"), study(file, run="theirs")
    ours.ask()
    going = theirs.ask()
    again = study(file, run="ours")
    again.abandon()
    theirs.tell(going, (0.1,), 0.0)
    assert [one.gains for one in again.told()] == [(0.1,)]


def test_the_sampler_goes_where_gains_are(file: str) -> None:
    one = study(file)
    for _ in range(30):
        asked = one.ask()
        one.tell(asked, (asked.configuration[CAP] / 100,), 0.0)
    later = [one.ask().configuration[CAP] for _ in range(20)]
    assert sum(cap == 16 for cap in later) >= 8


@pytest.mark.parametrize("added", [False, True])
def test_the_sampler_keeps_away_from_what_breaks_the_slo(file: str, *, added: bool) -> None:
    """The more slots the more is gained, and 16 break it: measured by this run, or before."""
    one = study(file)
    for live in SPACE.configurations(live=True, at=KNEE):
        for configuration in SPACE.configurations(live=False, at=live):
            cap = configuration[CAP]
            assert isinstance(cap, int)
            told = KnownTrial(configuration, (cap / 100,), 0.2 if cap == 16 else -0.01, "engine")
            if added:
                one.add(told)
            else:
                one.first(configuration)
                one.tell(one.ask(), told.gains, told.deficit)
    later = []
    for _ in range(10):
        later.append(one.ask().configuration[CAP])
        one.abandon()  # or else the next would keep its distance
    assert later.count(12) >= 8


def test_of_two_runs_that_begin_the_same_the_first_goes_on(file: str) -> None:
    ours, theirs = study(file, run="ours"), study(file, run="theirs")
    ours.first(KNEE)
    first = ours.ask()
    theirs.first(KNEE)
    second = theirs.ask()
    assert first.configuration == second.configuration == KNEE
    assert not theirs.is_elsewhere(KNEE, within_s=60.0)  # what is only asked for is nobody's yet
    assert ours.claim(first, within_s=60.0)
    assert ours.claim(first, within_s=60.0)
    assert theirs.is_elsewhere(KNEE, within_s=60.0)
    assert not theirs.claim(second, within_s=60.0)
    assert theirs.claim(second, within_s=0.0)  # it has died
    ours.fail(first, "the engine died")
    assert not theirs.is_elsewhere(KNEE, within_s=60.0)


def test_of_two_that_begin_at_the_same_moment_one_goes_on(file: str) -> None:
    """Each after it saw that nobody was at it."""
    ours, theirs = study(file, run="ours"), study(file, run="theirs")
    for one in (ours, theirs):
        one.first(KNEE)
    first, second = ours.ask(), theirs.ask()
    found = [
        claimed(one._study, trial=asked.trial, one=KNEE, run=one._run, within_s=60.0)
        for one, asked in ((theirs, second), (ours, first))
    ]
    assert found == [True, False]


@pytest.mark.parametrize("gives_up", [False, True])
def test_the_earliest_waits_until_the_later_one_holds_it_or_gives_up(
    file: str, monkeypatch: pytest.MonkeyPatch, *, gives_up: bool
) -> None:
    """Its beginning was written late: the other had looked, and was about to hold the trial."""
    ours, theirs = study(file, run="ours"), study(file, run="theirs")
    for one in (ours, theirs):
        one.first(KNEE)
    first, second = ours.ask(), theirs.ask()
    looks = list[float]()

    def sleep(length_s: float) -> None:
        looks.append(length_s)
        if len(looks) == 3 and gives_up:
            theirs.fail(second, "another run is at it")
        elif len(looks) == 3:
            second.trial.set_user_attr(HELD, True)

    clock = SimpleNamespace(time=lambda: 100.0, monotonic=lambda: 0.0, sleep=sleep)
    monkeypatch.setattr("tuner.runs.refine.study.study.time", clock)
    second.trial.set_user_attr(BEGUN, 101.0)
    assert ours.claim(first, within_s=60.0) is gives_up
    assert len(looks) == 3


@pytest.mark.parametrize("knobs", [2, 3])
def test_the_one_that_explains_all_is_found_among_trials_as_a_search_makes_them(
    file: str, knobs: int
) -> None:
    missed = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        space = Space(SPACE.knobs[:knobs], dict(list(KNEE.items())[:knobs]), ())
        one = Study(
            f"{file}{seed}", "name", space, aims=1, seed=0, run="run", machine="one",
            warn=SAID.append,
        )  # fmt: skip
        for _ in range(16):
            chosen = {
                knob.name: knob.values[int(rng.integers(len(knob.values)))] for knob in space.knobs
            }
            gain = chosen[CAP] / 40 + 0.01 * rng.normal()  # type: ignore[operator]
            one.add(KnownTrial(dict(chosen), (gain,), 0.0, "engine"))
        missed += CAP not in [each.name for each in one.importances(0)]
        one.close()
    assert missed == 0


def test_the_knob_that_explains_the_gains_is_found_with_its_uncertainty(file: str) -> None:
    one = study(file)
    for number in range(2 * FEWEST):
        cap, tokens = SPACE.knobs[0].values[number % 4], SPACE.knobs[1].values[number // 4 % 2]
        assert isinstance(cap, int)
        one.add(KnownTrial({**KNEE, CAP: cap, TOKENS: tokens}, (cap / 100,), 0.0, "engine"))
    most, *others = one.importances(0)
    assert most.name == CAP
    assert most.low <= most.share <= most.high
    assert all(other.high < most.low for other in others)


def test_an_argument_that_only_kept_good_company_explains_nothing(file: str) -> None:
    """Fewer blocks were only tried beside four slots, where they made no difference: with noise as
    a refinement had it."""
    space = Space(
        (
            Knob(CAP, tuple(range(1, 17)), ""),
            Knob("num_gpu_blocks_override", tuple(range(200, 2001, 200)), ""),
        ),
        {CAP: 2, "num_gpu_blocks_override": 2000},
        (),
    )
    one = Study(file, "name", space, aims=1, seed=0, run="run", machine="one", warn=SAID.append)
    by_cap = ((1, -2.101), (2, 0.0), (4, 0.321), (8, 0.321), (16, 0.321), (4, 0.422), (3, 0.403))
    by_blocks = (0.433, 0.417, 0.416, 0.43, 0.508, 0.453, 0.417, 0.414, 0.417)
    tried = [(cap, 2000, gain) for cap, gain in by_cap]
    tried += [(4, 200 * number, gain) for number, gain in enumerate(by_blocks, 1)]
    for cap, blocks, gain in tried:
        chosen = {CAP: cap, "num_gpu_blocks_override": blocks}
        one.add(KnownTrial(chosen, (gain,), 0.0, "engine"))
    assert "num_gpu_blocks_override" not in [each.name for each in one.importances(0)]


def test_chance_explains_nothing(file: str) -> None:
    one = study(file)
    gains = np.random.default_rng(0).normal(size=FEWEST)
    for number, gain in enumerate(gains.tolist()):
        cap, tokens = SPACE.knobs[0].values[number % 4], SPACE.knobs[1].values[number // 4 % 2]
        one.add(KnownTrial({**KNEE, CAP: cap, TOKENS: tokens}, (gain,), 0.0, "engine"))
    assert one.importances(0) == []


def test_few_trials_say_nothing_of_importance(file: str) -> None:
    one = study(file)
    one.add(KnownTrial(KNEE, (0.0,), 0.0, "engine"))
    assert one.importances(0) == []


def test_of_one_knob_alone_nobody_asks_how_much_it_matters(file: str) -> None:
    alone = Space(knobs=SPACE.knobs[:1], knee={CAP: 8}, left_out=())
    one = Study(file, "name", alone, aims=1, seed=0, run="run", machine="one", warn=SAID.append)
    for _ in range(FEWEST):
        one.add(KnownTrial({CAP: 8}, (0.0,), 0.0, "engine"))
    assert one.importances(0) == []


def test_a_study_of_another_machine_is_refused(file: str) -> None:
    study(file, machine="H200")
    with pytest.raises(RunError, match="is measured on H200, here it is L4"):
        study(file, machine="L4")


def test_of_two_machines_that_made_it_at_the_same_moment_one_is_refused(file: str) -> None:
    one = study(file, machine="H200")
    one._study.set_user_attr("machine", "L4")  # the other wrote last
    with pytest.raises(RunError, match="is measured on L4, here it is H200"):
        one.ask()


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (
            "postgresql://u:secret@127.0.0.1:1/x",
            "postgresql://u@127.0.0.1:1/x: the study's storage",
        ),
        ("nonsense://x", "nonsense://x: the study's storage"),
        ("postgresql://h:1/x?password=secret", "postgresql://h:1/x?password=: the study's"),
        ("postgresql://u:secret", "postgresql://u"),
        ("sqlite:////nowhere/secrets.db", "sqlite:////nowhere/"),
        ("sqlite:////dev/full", "sqlite:////dev/full: the study's storage cannot be used"),
        ("/dev/zero", "/dev/zero: the study's storage cannot be used (is no regular file)"),
        ("/proc/study.log", "/proc/study.log: the study's storage cannot be used"),
    ],
)
def test_a_storage_that_is_down_is_named_without_its_password(where: str, said: str) -> None:
    with pytest.raises(RunError) as caught:
        study(where)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value).replace("secrets.db", "")


def test_the_lock_that_a_killed_process_left_behind_holds_up_nobody(file: str) -> None:
    Path(f"{file}.lock").symlink_to("runs/study.log")  # as Optuna's own locks are
    one = study(file)
    one.add(KnownTrial(KNEE, (0.0,), 0.0, "engine"))
    assert len(study(file).told()) == 1


def test_a_file_that_others_hold_locked_is_not_waited_for(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = study(file)
    kept = Path(file).read_bytes()
    monkeypatch.setattr(storage, "STORAGE_TIMEOUT_S", 0)
    with Path(file).open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="another process has locked it for more than 0s"):
            study(file)
        one.add(KnownTrial(KNEE, (0.0,), 0.0, "engine"))
    assert one.lost is not None
    assert "another process has locked it" in one.lost
    assert Path(file).read_bytes() == kept
    study(file)  # now that they have let go


OPERATION = b'{"op_code":0,"worker_id":"one","study_name":"other","directions":[2]}\n'


@pytest.mark.parametrize(
    "content",
    [
        b"garbage\n",
        b"garbage",
        b"\n",
        b"\xff\x00\n",
        pytest.param(b"[" * 100_000, id="deep"),
        b"[1, 2]\n",
        b'{"arrival": 0.5}\n',
        b'{"op_code":0,"worker_id":"one"}\n',
        b'{"op_code":99,"worker_id":"one"}\n',
        OPERATION + b"garbage\n",
        OPERATION + b'{"arrival": 0.5}\n' + OPERATION,
    ],
)
def test_a_file_of_something_else_is_refused_as_it_is(file: str, content: bytes) -> None:
    Path(file).write_bytes(content)
    with pytest.raises(RunError) as caught:
        study(file)
    assert str(caught.value) == f"{file}: is no study of Optuna's journal"
    assert Path(file).read_bytes() == content


def test_a_line_too_long_for_a_study_is_not_read_to_its_end(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "LONGEST_LINE", 100)
    Path(file).write_bytes(OPERATION + b" " * 100)
    with pytest.raises(RunError, match="is no study of Optuna's journal"):
        study(file)
    assert Path(file).read_bytes() == OPERATION + b" " * 100


def test_a_line_that_a_full_disk_left_unfinished_is_dropped(file: str) -> None:
    study(file).add(KnownTrial(KNEE, (0.0,), 0.0, "engine"))
    with Path(file).open("ab") as unfinished:
        unfinished.write(OPERATION[:20])
    study(file).add(KnownTrial(KNEE, (0.1,), 0.0, "engine"))
    assert [one.gains for one in study(file).told()] == [(0.0,), (0.1,)]


@pytest.mark.attack
@pytest.mark.parametrize("scheme", ["redis", "rediss", "REDIS"])
def test_a_storage_whose_answers_are_run_is_refused_before_it_is_asked(scheme: str) -> None:
    with pytest.raises(RunError, match="runs what a Redis server sends") as caught:
        study(f"{scheme}://:secret@127.0.0.1:1/0")
    assert "secret" not in str(caught.value)
    assert "postgresql://" in caught.value.hint


def test_a_file_may_be_called_like_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study("redis-study.log").add(KnownTrial(KNEE, (0.0,), 0.0, "engine"))
    assert (tmp_path / "redis-study.log").exists()


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("postgres://h/x", "it: pip install 'tuner[postgresql]'."),
        ("postgresql+asyncpg://h/x", "asyncpg, or leave +asyncpg out."),
        ("mysql://h/x", "it: pip install mysqlclient,"),
        ("oracle://h/x", "it: see its name in the URL."),
    ],
)
def test_a_driver_that_is_missing_is_named(where: str, said: str) -> None:
    missing = "No module named 'x'"
    with pytest.raises(RunError, match="its driver is missing") as caught, storage.asking(where):
        raise ImportError(missing)
    assert caught.value.hint.startswith(f"Install {said}")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres.running() as server:
        yield server


_OTHER = """
import sys
from tests.runs.refine.test_refine import study
one = study(sys.argv[1], run="theirs")
one.tell(one.ask(), (0.2,), 0.0)
one.close()
"""


def test_a_server_that_does_not_answer_is_given_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = study(server.url, run="patient", name="frozen")
    one.add(KnownTrial(KNEE, (0.0,), 0.0, "engine"))
    before = [one.ask() for _ in range(3)]
    monkeypatch.setattr(storage_timeout, "ANSWER_S", 1.0)
    server.send(signal.SIGSTOP)
    try:
        one.fail(before[0], "it hangs here")
        asked = one.ask()
        one.tell(asked, (0.1,), 0.0)
        one.close()
    finally:
        server.send(signal.SIGCONT)
    one._timed.thread.join(60.0)  # once it answers its connections are closed
    assert not one._timed.thread.is_alive()
    assert one.lost is not None
    assert "no answer within 1s" in one.lost
    assert "secret" not in one.lost
    assert [told.gains for told in one.told()] == [(0.0,), (0.1,)]


def test_what_is_answered_too_late_ends_no_trial_of_the_study_in_memory(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = study(file)
    before = [one.ask() for _ in range(4)]
    monkeypatch.setattr(storage_timeout, "ANSWER_S", 0.2)
    with Path(file).open("a+b") as held:
        fcntl.flock(held.fileno(), fcntl.LOCK_EX)
        one.fail(before[-1], "it hangs here")
        assert one.lost is not None
        asked = [one.ask() for _ in range(6)]
    one.close()
    one._timed.thread.join(60.0)  # the late answer has come
    for number, each in enumerate(asked):
        one.tell(each, (number / 10,), 0.0)
    assert [told.gains for told in one.told()] == [(number / 10,) for number in range(6)]


def test_two_processes_share_a_study_in_postgresql(server: Server) -> None:
    ours = study(server.url, run="ours")
    ours.add(KnownTrial(KNEE, (0.0,), 0.0, "profile"))
    subprocess.run([sys.executable, "-c", _OTHER, server.url], check=True, cwd=ROOT)
    assert [one.gains for one in ours.told()] == [(0.0,), (0.2,)]
    ours.close()


def test_a_table_that_others_hold_locked_is_not_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg")
    study(server.url).close()
    monkeypatch.setattr(storage, "STORAGE_TIMEOUT_S", 1)
    with psycopg.connect(server.url) as other:
        other.execute("LOCK TABLE studies IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(RunError, match="the study's storage cannot be used") as caught:
            study(server.url)
    assert "secret" not in str(caught.value)


def test_a_storage_that_goes_down_is_given_up_and_told_on_resume(server: Server) -> None:
    SAID.clear()
    ours, theirs = study(server.url, run="ours"), study(server.url, run="theirs")
    ours.add(KnownTrial(KNEE, (0.0,), 0.0, "engine"))
    theirs.tell(theirs.ask(), (0.2,), 0.0)
    theirs.close()
    before = [one.gains for one in ours.told()]
    asked = ours.ask()
    server.control("stop")
    try:
        ours.tell(asked, (0.3,), 0.0)
        another = ours.ask()
        ours.tell(another, (0.1,), 0.0)
        ours.prune(ours.ask(), -0.5, "cut", by="engine")
    finally:
        server.control("start")
    after = [one.gains for one in ours.told()]
    assert sorted(after) == sorted([*before, (0.3,), (0.1,)])
    assert (0.2,) in [one.gains for one in ours.others()]
    (said,) = SAID
    assert "this run goes on by its own journal" in said
    assert "secret" not in said
    ours.close()
    again = study(server.url, run="ours")
    assert (0.3,) not in [one.gains for one in again.told()]
    again.close()


def test_of_a_storage_that_fails_what_its_driver_says_is_said_and_no_password() -> None:
    failed = ValueError("An exception is raised during the commit")
    failed.__cause__ = ConnectionError("the server is gone, s3cret")
    with pytest.raises(RunError) as refused, storage.asking("postgresql://ann:s3cret@db/x"):
        raise failed
    said = "postgresql://ann@db/x: the study's storage cannot be used (the server is gone, …)"
    assert str(refused.value) == said
