"""A warning about a trace is said once in a run of commands on it."""

import shutil
from pathlib import Path

import pytest

from tests.support.in_process import tuner
from tests.support.places import ROOT
from tuner.commands.shared.said import mark_said, not_said

pytestmark = pytest.mark.usefixtures("by_few_draws")

WARNING = "Warning: no hash_ids"
SIM = ("--engine", "sim", "--world", ROOT / "examples" / "worlds" / "article.yaml", "--fast")


@pytest.fixture(autouse=True)
def _nobody_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_what_the_import_said_no_command_repeats_but_counts(tmp_path: Path) -> None:
    shutil.copy(ROOT / "traces" / "translation.jsonl", tmp_path / "raw.jsonl")
    done = tuner(tmp_path, "trace", "import", "raw.jsonl", "-o", "prod.jsonl")
    assert WARNING in done.stdout
    for words in (
        ("show", "prod.jsonl"),
        ("cut", "prod.jsonl", "--window", "0s+200s", "-o", "cut.jsonl"),
        ("show", "cut.jsonl"),
    ):
        said = tuner(tmp_path, "trace", *words).stdout
        assert WARNING not in said
        assert "1 warning said before" in said
    assert "no hash_ids" in tuner(tmp_path, "trace", "show", "prod.jsonl", "--json").stdout
    swept = tuner(tmp_path, "sweep", "--trace", "prod.jsonl", *SIM)
    assert WARNING not in swept.stdout + swept.stderr
    assert "more warning" in swept.stdout
    details = tuner(tmp_path, "sweep", "--trace", "prod.jsonl", *SIM, "--details", "--resume")
    assert WARNING in details.stdout


def test_what_was_shown_of_a_trace_its_export_does_not_repeat(tmp_path: Path) -> None:
    rows = '{"timestamp":0,"input_length":3,"output_length":5}\n' * 2
    (tmp_path / "raw.jsonl").write_text(rows + '{"input_length":3,"output_length":5}\n')
    said = "1 of 3 rows dropped (no_timestamp"
    assert said in tuner(tmp_path, "trace", "show", "raw.jsonl").stdout
    words = ("trace", "export", "raw.jsonl", "--format", "mooncake", "-o", "out.jsonl")
    exported = tuner(tmp_path, *words).stdout
    assert said not in exported
    assert "1 warning said before" in exported


def test_of_another_trace_it_is_said_again(tmp_path: Path) -> None:
    assert not_said(tmp_path / "a", ["x", "y"]) == ["x", "y"]
    mark_said(tmp_path / "b", ["x"])
    assert not_said(tmp_path / "a", ["x", "z"]) == ["z"]
    assert not_said(tmp_path / "b", ["x", "z"]) == ["z"]


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": "b"}', "null"])
def test_a_broken_file_of_what_was_said_only_says_it_again(tmp_path: Path, content: str) -> None:
    mark_said(tmp_path / "a", ["x"])
    (tmp_path / "state" / "tuner" / "said.json").write_text(content)
    assert not_said(tmp_path / "a", ["x"]) == ["x"]


def test_where_nothing_can_be_kept_it_is_said_again(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    assert not_said(tmp_path / "a", ["x"]) == ["x"]
    assert not_said(tmp_path / "a", ["x"]) == ["x"]
