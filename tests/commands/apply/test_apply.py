"""`tuner apply` as a user meets it: what it prints, writes, refuses and takes back."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.profile.test_admission import with_twin
from tests.support.profiles import ENGINE, profile
from tuner import cli
from tuner.profile.profile import dump, save
from tuner.rollout.fit import SIMULATED

PRODUCTION = "# prod\nmodel: m\nmax_num_seqs: 256  # why\nhost: 0.0.0.0\n"


@dataclass(frozen=True, slots=True)
class Done:
    exit_code: int
    out: str
    err: str


Tuner = Callable[..., Done]


@cache
def usual() -> str:
    """Return a profile as it is saved."""
    return dump(profile())


@pytest.fixture
def tuner(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Tuner:
    """Run the command line in an empty folder that has profile.yaml and prod.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("profile.yaml").write_text(usual())
    Path("prod.yaml").write_text(PRODUCTION)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["tuner", *arguments])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert isinstance(exited.value.code, int)
        return Done(exited.value.code, captured.out, captured.err)

    return run


def names() -> list[str]:
    return sorted(one.name for one in Path().iterdir())


def refused(done: Done, exit_code: int) -> str:
    """Return the one line that says what is wrong; one more names the cure.

    Where --force would write, the diff is shown, and warnings stand above.
    """
    *warnings, message, cure = done.err.splitlines()
    assert done.exit_code == exit_code
    assert done.out.startswith("--- ") if done.out else not warnings
    assert cure
    return message.removeprefix("Error: ")


def test_without_a_file_a_new_one_is_written(tuner: Tuner) -> None:
    done = tuner("apply", "profile.yaml")
    assert done.exit_code == 0
    assert done.out.startswith("serve.yaml: written\n")
    assert yaml.safe_load(Path("serve.yaml").read_text())["max-num-seqs"] == 16


def test_a_dry_run_prints_a_patch_and_writes_nothing(tuner: Tuner) -> None:
    Path("prod.yaml").write_text(PRODUCTION.rstrip("\n"))
    before = names()
    done = tuner("apply", "profile.yaml", "prod.yaml", "--dry-run")
    assert names() == before
    assert done.out.startswith("--- prod.yaml\n+++ prod.yaml\n@@ ")
    assert "-max_num_seqs: 256  # why\n" in done.out
    tuner("apply", "profile.yaml", "prod.yaml")
    applied = Path("prod.yaml").read_text()
    tuner("apply", "--rollback", "prod.yaml")
    patch = shutil.which("patch")
    if patch is None:
        pytest.skip("no patch here")
    subprocess.run([patch, "-s", "prod.yaml"], input=done.out, text=True, check=True)
    assert Path("prod.yaml").read_text() == applied


def test_a_patch_has_the_files_own_bytes_in_any_locale(tuner: Tuner) -> None:
    del tuner  # its files are enough
    Path("prod.yaml").write_text("# für\nmodel: m\nmax-num-seqs: 8\n", encoding="utf-8")
    name = os.fsdecode(b"\xff.yaml")
    Path("prod.yaml").rename(name)
    command = [sys.executable, "-c", "from tuner.cli import main; main()"]
    done = subprocess.run(
        [*command, "apply", "profile.yaml", name, "--dry-run"],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.startswith(b"--- \xff.yaml\n+++ \xff.yaml\n@@ -1,3 +1,4 @@\n # f\xc3\xbcr\n")


def test_json_says_what_changed(tuner: Tuner) -> None:
    done = tuner("apply", "profile.yaml", "prod.yaml", "--json")
    document = json.loads(done.out)
    assert document["file"] == "prod.yaml"
    assert document["status"] == "changed"
    assert document["changes"][0] == {"argument": "max_num_seqs", "before": 256, "after": 16}
    assert document["backup"] == "prod.yaml.tuner-backup"
    assert json.loads(tuner("apply", "--rollback", "prod.yaml", "--json").out) == {
        "file": "prod.yaml",
        "status": "restored",
    }


def test_the_result_can_go_elsewhere(tuner: Tuner) -> None:
    assert tuner("apply", "profile.yaml", "prod.yaml", "-o", "new.yaml").exit_code == 0
    assert Path("prod.yaml").read_text() == PRODUCTION
    assert "max_num_seqs: 16  # why" in Path("new.yaml").read_text()


def test_the_result_replaces_another_file_only_when_forced(tuner: Tuner) -> None:
    Path("new.yaml").write_text("precious: 1\n")
    arguments = ("apply", "profile.yaml", "prod.yaml", "-o", "new.yaml")
    assert refused(tuner(*arguments), 3) == "new.yaml: already there"
    assert Path("new.yaml").read_text() == "precious: 1\n"
    assert tuner(*arguments, "--force").exit_code == 0
    tuner("apply", "--rollback", "new.yaml")
    assert Path("new.yaml").read_text() == "precious: 1\n"


@pytest.mark.parametrize(
    ("facts", "warning"),
    [
        ({"verdict": "overloaded", "reason": "too much"}, "overloaded: too much"),
        ({"verdict": "overloaded", "reason": "overloaded: too much"}, "overloaded: too much"),
        ({"engine_": "sim"}, SIMULATED),
    ],
)
def test_what_else_to_know_is_a_warning(tuner: Tuner, facts: dict[str, str], warning: str) -> None:
    save(profile(**facts), Path("odd.yaml"))  # type: ignore[arg-type]
    done = tuner("apply", "odd.yaml")
    assert (done.exit_code, done.err) == (0, f"Warning: {warning}\n")


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_limit_that_undoes_the_choice_is_refused_with_the_change_shown(
    tuner: Tuner, force: list[str]
) -> None:
    text = "model: m\nmax-num-seqs: 9\nmax-num-active-seqs: 8\n"
    Path("prod.yaml").write_text(text)
    done = tuner("apply", "profile.yaml", "prod.yaml", *force)
    assert refused(done, 3).startswith("prod.yaml:3: max_num_active_seqs is 8")
    assert "-max-num-seqs: 9\n+max-num-seqs: 16\n" in done.out
    assert Path("prod.yaml").read_text() == text
    assert tuner("apply", "profile.yaml", "prod.yaml", "--live-knob", *force).exit_code == 0
    assert "max-num-active-seqs: 16\n" in Path("prod.yaml").read_text()


def test_check_fails_until_the_file_is_as_the_profile_has_it(tuner: Tuner) -> None:
    done = tuner("apply", "profile.yaml", "prod.yaml", "--check")
    assert refused(done, 6) == "prod.yaml: is not as the profile has it"
    assert Path("prod.yaml").read_text() == PRODUCTION
    tuner("apply", "profile.yaml", "prod.yaml")
    assert tuner("apply", "profile.yaml", "prod.yaml", "--check").exit_code == 0


def test_a_file_beside_that_decides_is_warned_of(tuner: Tuner) -> None:
    Path("compose.yaml").write_text("services:\n  v: {image: vllm/vllm-openai, command: [m]}\n")
    Path("compose.override.yaml").write_text("services:\n  v:\n    command: [m]\n")
    Path("v.service").write_text("[Service]\nExecStart=/bin/vllm serve m\n")
    Path("v.service.d").mkdir()
    Path("v.service.d/a.conf").write_text("[Service]\nExecStart=\nExecStart=/bin/vllm serve m\n")
    pod = "kind: Pod\nspec: {containers: [{image: vllm/vllm-openai, args: [m]}]}\n"
    Path("d.yaml").write_text(pod)
    Path("kustomization.yaml").write_text("resources: [d.yaml]\npatches: [{path: p.yaml}]\n")
    Path("p.yaml").write_text("kind: Pod\nspec:\n  containers:\n  - args: [m]\n")
    for file, place in (
        ("compose.yaml", "compose.override.yaml:3"),
        ("v.service", "v.service.d/a.conf:2"),
        ("d.yaml", "p.yaml:4"),
    ):
        done = tuner("apply", "profile.yaml", file)
        assert (done.exit_code, f"Warning: {place} " in done.err) == (0, True), done.err


# What a file does not tell of its vLLM cannot be compared, and that is said.


@pytest.mark.parametrize(
    ("image", "told", "warning"),
    [
        ("image: vllm/vllm-openai:v0.32.0", 0, None),
        ("image: vllm/vllm-openai:v0.32.0rc1", 6, None),
        ("image: vllm/vllm-openai:latest", 0, "c.yaml:3: vllm/vllm-openai:latest does not tell"),
        ("image: acme/llm@sha256:01", 0, "c.yaml:3: acme/llm@sha256:01 does not tell"),
        ('image: "vllm/a\\e[2J\\nb"', 0, "c.yaml:3: vllm/a\\x1b[2J\\nb does not tell"),
        ("build: .", 0, "c.yaml: no image tells"),
    ],
)
def test_an_image_that_does_not_tell_its_vllm_is_named(
    tuner: Tuner, image: str, told: int, warning: str | None
) -> None:
    save(profile(versions={"vllm": "0.32.0"}), Path("measured.yaml"))
    Path("c.yaml").write_text(f"services:\n  v:\n    {image}\n    command: vllm serve m\n")
    done = tuner("apply", "measured.yaml", "c.yaml", "--dry-run")
    assert done.exit_code == told
    warnings = [line for line in done.err.splitlines() if line.startswith("Warning: ")]
    if warning is None:
        assert [one for one in warnings if "measured elsewhere" not in one] == []
    else:
        (said,) = warnings
        assert said == (
            f"Warning: {warning} which vLLM will serve; the profile was measured with 0.32.0"
        )
        found = json.loads(tuner("apply", "measured.yaml", "c.yaml", "--json").out)["warnings"]
        assert len(found) == 1


# Other kinds of file than vLLM's own.

MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  selector: {matchLabels: {app: llm}}
  template:
    spec:
      containers:
      - name: a
        image: vllm/vllm-openai:v0.32.0
        args: [--model=m, --max-num-seqs=256]  # why
      - name: b
        image: vllm/vllm-openai:v0.9.1
        args: [--model=m]
"""


@pytest.fixture
def small(tuner: Tuner) -> Tuner:
    """A profile of few arguments, so that the file's change is easily seen."""
    few = {name: ENGINE[name] for name in ("model", "max_num_seqs", "max_num_batched_tokens")}
    save(profile(engine=few, versions={"vllm": "0.32.0"}), Path("profile.yaml"))
    Path("d.yaml").write_text(MANIFEST)
    return tuner


def test_an_image_of_another_vllm_is_refused_and_forced_on_record(small: Tuner) -> None:
    arguments = ("apply", "profile.yaml", "d.yaml", "--container", "llm/b")
    assert refused(small(*arguments), 6) == (
        "the profile was measured elsewhere: vLLM 0.32.0, d.yaml:13 has 0.9.1"
    )
    document = json.loads(small(*arguments, "--force", "--json").out)
    record = json.loads(Path("d.yaml.tuner-backup.json").read_text())
    assert record["override"] == document["override"]
    assert document["override"]["despite"] == ["vLLM 0.32.0, d.yaml:13 has 0.9.1"]
    assert document["override"]["profile"] == "profile.yaml"
    assert document["override"]["profile_digest"].startswith("sha256:")
    assert "@" in document["override"]["who"]
    assert document["override"]["when"].endswith("+00:00")
    small("apply", "--rollback", "d.yaml")
    assert Path("d.yaml").read_text() == MANIFEST


def test_a_drop_in_is_written_beside_the_unit(small: Tuner) -> None:
    unit = "[Service]\nExecStart=/bin/vllm serve m --max-num-seqs 8\nRestart=always\n"
    Path("v.service").write_text(unit)
    Path("v.service.d").mkdir()
    done = small("apply", "profile.yaml", "v.service", "-o", "v.service.d/t.conf")
    assert done.exit_code == 0
    assert Path("v.service").read_text() == unit
    drop_in = Path("v.service.d/t.conf").read_text()
    assert drop_in == "[Service]\nExecStart=\nExecStart=/bin/vllm serve m --max-num-seqs 16\n"
    again = small("apply", "profile.yaml", "v.service.d/t.conf")
    assert again.out == "v.service.d/t.conf: nothing to change, max_num_seqs is 16\n"


def test_admission_limits_are_set_when_asked_for_with_their_reason(small: Tuner) -> None:
    save(with_twin(), Path("twin.yaml"))
    done = small("apply", "twin.yaml", "--admission-limits")
    assert done.exit_code == 0
    assert "max-num-queued-tokens: 2500\n" in Path("serve.yaml").read_text()
    assert "max-num-queued-reqs: 24\n" in Path("serve.yaml").read_text()
    assert "max-num-active-seqs: 16\n" in Path("serve.yaml").read_text()
    assert "  because max_num_queued_tokens 2500: a TTFT limit of 500 ms x" in done.out


def test_a_dry_run_shows_the_change_also_where_it_refuses(tuner: Tuner) -> None:
    save(profile(engine={**ENGINE, "model": "n"}), Path("other.yaml"))
    done = tuner("apply", "other.yaml", "prod.yaml", "--dry-run")
    assert done.exit_code == 6
    assert "+max_num_seqs: 16" in done.out or "+max-num-seqs: 16" in done.out
    assert "the profile was measured elsewhere: model n" in done.err
    save(profile(verdict="inconclusive", reason="8 and 16 tie"), Path("tie.yaml"))
    done = tuner("apply", "tie.yaml", "--dry-run")
    assert done.exit_code == 5
    assert "+max-num-seqs: 16" in done.out


def test_of_a_simulated_engine_neither_memory_nor_model_is_written(tuner: Tuner) -> None:
    simulated = {
        **ENGINE, "model": "tuner:tiny", "dtype": "float32", "num_gpu_blocks_override": 1200,
        "block_size": 16, "max_model_len": 19200,
    }  # fmt: skip
    save(profile(engine=simulated, engine_="sim"), Path("sim.yaml"))
    for force in ([], ["--force"]):
        assert tuner("apply", "sim.yaml", "new.yaml", *force).exit_code == 0
        written = yaml.safe_load(Path("new.yaml").read_text())
        assert written["max-num-seqs"] == 16
        assert not written.keys() & {
            "model", "dtype", "num-gpu-blocks-override", "block-size", "max-model-len",
        }  # fmt: skip
