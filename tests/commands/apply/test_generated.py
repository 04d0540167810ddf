"""`tuner apply --to prometheus-rules` and its like: files that are tuner's own as a whole."""

import json
from pathlib import Path

import pytest
import yaml

from tests.commands.apply.test_apply import Tuner, names, refused, tuner  # noqa: F401 - a fixture
from tests.support.profiles import profile
from tuner.profile.profile import save
from tuner.rollout import monitor

FILES = {kind.name: kind.file for kind in monitor.KINDS}


@pytest.fixture
def run(tuner: Tuner) -> Tuner:  # noqa: F811 - the fixture
    return tuner


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_written_known_again_and_taken_back(run: Tuner, kind: str) -> None:
    before, file = names(), FILES[kind]
    done = run("apply", "profile.yaml", "--to", kind)
    assert (done.exit_code, done.out.splitlines()[0]) == (0, f"{file}: written")
    text = Path(file).read_text()
    again = run("apply", "profile.yaml", file)  # the kind stands in the file
    assert again.out == f"{file}: nothing to change, max_num_seqs is 16\n"
    assert Path(file).read_text() == text
    assert run("apply", "--rollback", file).exit_code == 0
    assert names() == before


@pytest.mark.parametrize("kind", FILES)
def test_a_later_profile_replaces_it_and_can_be_taken_back(run: Tuner, kind: str) -> None:
    file = FILES[kind]
    run("apply", "profile.yaml", "--to", kind)
    first = Path(file).read_bytes()
    save(profile(seed=1), Path("later.yaml"))
    shown = run("apply", "later.yaml", "--to", kind, file, "--dry-run")
    assert shown.out.startswith(f"--- {file}\n+++ {file}\n@@ ")
    assert Path(file).read_bytes() == first
    changed = json.loads(run("apply", "later.yaml", "--to", kind, file, "--json").out)
    assert (changed["kind"], changed["status"], changed["changes"]) == (kind, "changed", [])
    assert Path(file).read_bytes() != first
    run("apply", "--rollback", file)
    assert Path(file).read_bytes() == first


def test_a_selector_says_which_servers(run: Tuner) -> None:
    run("apply", "profile.yaml", "--to", "prometheus-rules", "--selector", 'job="llm"')
    rules = yaml.safe_load(Path("tuner-rules.yaml").read_text())["groups"][1]["rules"]
    assert 'absent(vllm:num_requests_running{job="llm"})' in [rule["expr"] for rule in rules]


def test_an_undecided_profile_sets_no_alarms(run: Tuner) -> None:
    save(profile(verdict="inconclusive", reason="inconclusive: noise"), Path("p.yaml"))
    assert refused(run("apply", "p.yaml", "--to", "prometheus-rules"), 5).startswith("p.yaml: ")
    done = run("apply", "p.yaml", "--to", "prometheus-rules", "--force")
    assert done.exit_code == 0
    record = json.loads(Path("tuner-rules.yaml.tuner-backup.json").read_text())
    assert record["override"]["despite"] == ["inconclusive: noise"]
