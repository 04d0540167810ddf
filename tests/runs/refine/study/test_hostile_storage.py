"""A study's database that somebody else has written to spoils the study, and does nothing else."""

import json
import math
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.runs.refine.test_refine import KNEE, SAID, SPACE, study
from tuner.errors import RunError
from tuner.runs.refine.knobs import CAP
from tuner.runs.refine.objective import KnownTrial

pytestmark = [pytest.mark.attack, pytest.mark.timeout(60)]

ODD = "\x1b]0;owned\x07\x1b[31mred\u202egnp"
"""Sets a terminal's title and colour, and turns the direction of what follows."""

ATTRIBUTE = "UPDATE trial_user_attributes SET value_json = ? WHERE key = ?"
RUNS_CODE = {**KNEE, "trust_remote_code": True, "worker_cls": "os.system"}

STATEMENTS: dict[str, tuple[str, ...]] = {
    "machine, escapes": ("UPDATE study_user_attributes SET value_json = ?", json.dumps(ODD)),
    "machine, a list": ("UPDATE study_user_attributes SET value_json = ?", "[1, {}]"),
    "machine, 5 MB": ("UPDATE study_user_attributes SET value_json = ?", f'"{"A" * 5_000_000}"'),
    "machine, no JSON": ("UPDATE study_user_attributes SET value_json = ?", ODD),
    "machine, nested": ("UPDATE study_user_attributes SET value_json = ?", "[" * 200_000),
    "configuration, text": (ATTRIBUTE, json.dumps(ODD), "configuration"),
    "configuration, a list": (ATTRIBUTE, "[1, 2]", "configuration"),
    "configuration, null": (ATTRIBUTE, "null", "configuration"),
    "configuration, odd keys": (ATTRIBUTE, json.dumps({ODD: ODD, CAP: ODD}), "configuration"),
    "configuration, negative": (ATTRIBUTE, json.dumps({**KNEE, CAP: -5}), "configuration"),
    "configuration, lists": (ATTRIBUTE, json.dumps({**KNEE, CAP: [12]}), "configuration"),
    "configuration, no cap": (ATTRIBUTE, json.dumps({"block_size": 16}), "configuration"),
    "configuration, 5,000 digits": (ATTRIBUTE, f'{{"{CAP}": 1{"0" * 5000}}}', "configuration"),
    "configuration, 3 MB": (ATTRIBUTE, json.dumps({**KNEE, CAP: "B" * 3_000_000}), "configuration"),
    "configuration, runs code": (ATTRIBUTE, json.dumps(RUNS_CODE), "configuration"),
    "configuration, gone": ("DELETE FROM trial_user_attributes WHERE key = 'configuration'",),
    "deficit, text": (ATTRIBUTE, json.dumps(ODD), "deficit"),
    "deficit, NaN": (ATTRIBUTE, "NaN", "deficit"),
    "deficit, infinite": (ATTRIBUTE, "-Infinity", "deficit"),
    "deficit, a list": (ATTRIBUTE, "[0]", "deficit"),
    "deficit, gone": ("DELETE FROM trial_user_attributes WHERE key = 'deficit'",),
    "source, a list": (ATTRIBUTE, '["engine"]', "source"),
    "source, escapes": (ATTRIBUTE, json.dumps(ODD), "source"),
    "room, text": (ATTRIBUTE, json.dumps(ODD), "has_room"),
    "run, a dictionary": (ATTRIBUTE, "{}", "run"),
    "begun, text": (ATTRIBUTE, json.dumps(ODD), "begun"),
    "begun, for ever": (ATTRIBUTE, "1e308", "begun"),
    "ended by, a list": (ATTRIBUTE, "[1]", "ended_by"),
    "value, text": ("UPDATE trial_values SET value = ?", ODD),
    "value, infinite": ("UPDATE trial_values SET value = NULL, value_type = 'INF_POS'",),
    "value, 1e308": ("UPDATE trial_values SET value = 1e308",),
    "value, of no type": ("UPDATE trial_values SET value_type = ?", ODD),
    "value, gone": ("DELETE FROM trial_values",),
    "value, twice": (
        ("INSERT INTO trial_values (trial_id, objective, value, value_type) "
        "SELECT trial_id, 1, 0.5, 'FINITE' FROM trials"),
    ),
    "parameter, its name": ("UPDATE trial_params SET param_name = param_name || ?", ODD),
    "parameter, text": ("UPDATE trial_params SET param_value = ?", ODD),
    "parameter, far outside": ("UPDATE trial_params SET param_value = 99999",),
    "distribution, of no class": (
        "UPDATE trial_params SET distribution_json = ?",
        json.dumps({"name": "os.system", "attributes": {"command": "touch owned"}}),
    ),
    "distribution, no JSON": ("UPDATE trial_params SET distribution_json = ?", ODD),
    "distribution, another": (
        "UPDATE trial_params SET distribution_json = ?",
        json.dumps({"name": "FloatDistribution", "attributes": {"low": 0, "high": 1e308}}),
    ),
    "distribution, its class": (
        "UPDATE trial_params SET distribution_json = ?",
        json.dumps({"name": "IntDistribution", "attributes": {"__class__": "x"}}),
    ),
    "state, unknown": ("UPDATE trials SET state = ?", ODD),
    "state, all run": ("UPDATE trials SET state = 'RUNNING'",),
    "state, all wait": ("UPDATE trials SET state = 'WAITING'",),
    "constraints, text": ("UPDATE trial_system_attributes SET value_json = ?", json.dumps(ODD)),
    "constraints, NaN": ("UPDATE trial_system_attributes SET value_json = '[NaN]'",),
    "date, text": ("UPDATE trials SET datetime_start = ?", ODD),
    "number, negative": ("UPDATE trials SET number = -number - 1",),
    "study, its name": ("UPDATE studies SET study_name = study_name || ?", ODD),
    "direction, unknown": ("UPDATE study_directions SET direction = ?", ODD),
    "direction, the other": ("UPDATE study_directions SET direction = 'MINIMIZE'",),
    "direction, gone": ("DELETE FROM study_directions",),
    "version, another": ("UPDATE version_info SET schema_version = 999, library_version = ?", ODD),
    "version, of its tables": ("UPDATE alembic_version SET version_num = ?", ODD),
    "table, gone": ("DROP TABLE trials",),
    "column, gone": ("ALTER TABLE trials RENAME COLUMN state TO condition",),
}  # fmt: skip


def _thousands(file: Path) -> None:
    with closing(sqlite3.connect(file)) as base:
        base.executemany(
            "INSERT INTO trials (trial_id, number, study_id, state) VALUES (?, ?, 1, 'COMPLETE')",
            [(number, number) for number in range(100, 3100)],
        )
        base.commit()


def _linked(file: Path) -> None:
    file.rename(file.with_name("real"))
    file.symlink_to("real")


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


FILES: dict[str, Callable[[Path], object]] = {
    "3,000 trials without numbers": _thousands,
    "no database": lambda file: file.write_bytes(b"garbage " * 1000),
    "escapes": lambda file: file.write_text(ODD * 1000),
    "half of it": lambda file: os.truncate(file, 20_000),
    "damaged": lambda file: file.write_bytes(file.read_bytes()[:9000] + b"\xff" * 40_000),
    "a link": _linked,
    "a folder": _folder,
    "only to be read": lambda file: file.chmod(0o400),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a trial that was measured, one that was cut, one that runs, and the curve."""
    file = tmp_path_factory.mktemp("honest") / "study.db"
    one = study(f"sqlite:///{file}", run="theirs")
    one.add(KnownTrial({**KNEE, CAP: 12}, (0.1,), -0.01, "profile"))
    one.tell(one.ask(), (0.2,), -0.01)
    one.prune(one.ask(), -0.3, "cut", by="engine")
    assert one.claim(one.ask(), within_s=60.0)
    one.close()
    return file


def use(storage: str) -> None:
    """Search as a run does; what the database says must be of the space, and finite."""
    SAID.clear()
    one = study(storage, run="ours")
    try:
        one.abandon()
        asked = one.ask()
        one.is_elsewhere(asked.configuration, within_s=60.0)
        one.claim(asked, within_s=60.0)
        told = [*one.told(), *one.others()]
        tried = [asked.configuration, *one.tried(), *(each.configuration for each in told)]
        assert all(each.keys() == KNEE.keys() for each in tried)
        assert all(each[knob.name] in knob.values for each in tried for knob in SPACE.knobs)
        assert all(math.isfinite(n) for each in told for n in (*each.gains, each.deficit))
        one.tell(asked, (0.1,), 0.0)
        one.importances(0)
        assert asked.configuration in one.tried()
    finally:
        one.close()


def _holds(file: Path) -> None:
    try:
        use(f"sqlite:///{file}")
    except RunError as refused:
        SAID.append(str(refused))
    for said in SAID:
        assert "\n" not in said
        assert len(said) < 500 + len(str(file))


def test_an_honest_database_is_used_without_a_word(honest: Path, tmp_path: Path) -> None:
    file = Path(shutil.copy(honest, tmp_path / "x.db"))
    use(f"sqlite:///{file}")
    assert SAID == []


@pytest.mark.parametrize("what", STATEMENTS)
def test_what_others_wrote_into_a_study_is_refused_or_left_out(
    honest: Path, tmp_path: Path, what: str
) -> None:
    file = Path(shutil.copy(honest, tmp_path / "x.db"))
    statement, *values = STATEMENTS[what]
    with closing(sqlite3.connect(file)) as base:
        base.execute(statement, values)
        base.commit()
    _holds(file)


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_no_sound_database_is_refused_or_given_up(
    honest: Path, tmp_path: Path, what: str
) -> None:
    file = Path(shutil.copy(honest, tmp_path / "x.db"))
    FILES[what](file)
    _holds(file)


def test_of_trials_that_name_other_arguments_none_is_compared_and_their_number_is_said(
    honest: Path, tmp_path: Path
) -> None:
    file = Path(shutil.copy(honest, tmp_path / "x.db"))
    with closing(sqlite3.connect(file)) as base:
        base.execute(ATTRIBUTE, (json.dumps(RUNS_CODE), "configuration"))
        base.commit()
    SAID.clear()
    one = study(f"sqlite:///{file}", run="ours")
    assert (one.told(), one.others(), one.tried()) == ([], [], [])
    one.close()
    (said,) = SAID
    assert said.endswith(
        "2 of its trials have no configuration or numbers of this search: they are left out"
    )


@pytest.mark.parametrize(
    "computes",
    [
        (
            "CREATE VIEW odd AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
            "SELECT i FROM n"
        ),
        "CREATE TRIGGER odd AFTER INSERT ON trials BEGIN SELECT load_extension('/tmp/x'); END",
        "ALTER TABLE trials ADD COLUMN odd GENERATED ALWAYS AS (hex(zeroblob(900000000)))",
        "ALTER TABLE trials ADD COLUMN odd TEXT AS (hex(zeroblob(900000000)))",
    ],
)
def test_a_database_that_computes_what_it_holds_is_refused(
    honest: Path, tmp_path: Path, computes: str
) -> None:
    file = Path(shutil.copy(honest, tmp_path / "x.db"))
    with closing(sqlite3.connect(file)) as base:
        base.execute(computes)
    with pytest.raises(RunError, match="it has views, triggers or computed columns"):
        study(f"sqlite:///{file}")


def test_a_link_in_place_of_a_runs_study_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "study.log").symlink_to("victim")
    with pytest.raises(RunError, match="is a link"):
        study(str(tmp_path / "study.log"), run="ours")
    assert not (tmp_path / "victim").exists()


def test_a_study_is_for_its_owner_alone(tmp_path: Path) -> None:
    study(str(tmp_path / "study.log")).add(KnownTrial(KNEE, (0.0,), 0.0, "engine"))
    assert (tmp_path / "study.log").stat().st_mode & 0o777 == 0o600
