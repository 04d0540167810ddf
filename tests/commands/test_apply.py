"""`tuner apply` as a user meets it: what it prints, writes, refuses and takes back.

What it does to files of all kinds is in tests/outside/deploy.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.outside.table import Done, run
from tests.profile.test_evidence import limits as admission
from tests.support.profiles import ENGINE, profile, resealed
from tuner.profile.profile import save
from tuner.rollout import monitor

PRODUCTION = "# prod\nmodel: m\nmax_num_seqs: 256  # why\nhost: 0.0.0.0\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder, the working one, that has profile.yaml and prod.yaml."""
    monkeypatch.chdir(tmp_path)
    few = {name: ENGINE[name] for name in ("model", "max_num_seqs", "max_num_batched_tokens")}
    save(profile(engine=few, versions={"vllm": "0.32.0"}), Path("profile.yaml"))
    Path("prod.yaml").write_text(PRODUCTION)
    return tmp_path


def apply(*words: str) -> Done:
    return run(Path(), "apply", *words)


def names() -> list[str]:
    return sorted(each.name for each in Path().iterdir())


pytestmark = pytest.mark.usefixtures("folder")


def test_without_a_file_a_new_one_is_written() -> None:
    done = apply("profile.yaml")
    assert (done.code, done.stdout.splitlines()[0]) == (0, "serve.yaml: written")
    assert yaml.safe_load(Path("serve.yaml").read_text())["max-num-seqs"] == 16


def test_a_dry_run_prints_a_patch_and_writes_nothing() -> None:
    if (patch := shutil.which("patch")) is None:
        pytest.skip("no patch here")
    Path("prod.yaml").write_text(PRODUCTION.rstrip("\n"))
    before = names()
    done = apply("profile.yaml", "prod.yaml", "--dry-run")
    assert names() == before
    apply("profile.yaml", "prod.yaml")
    applied = Path("prod.yaml").read_text()
    apply("--rollback", "prod.yaml")
    subprocess.run([patch, "-s", "prod.yaml"], input=done.stdout, text=True, check=True)
    assert Path("prod.yaml").read_text() == applied


def test_json_says_what_changed_and_check_fails_until_it_has() -> None:
    assert apply("profile.yaml", "prod.yaml", "--check").code == 6
    document = apply("profile.yaml", "prod.yaml", "--json").json
    assert (document["file"], document["status"]) == ("prod.yaml", "changed")
    assert document["changes"] == [{"argument": "max_num_seqs", "before": 256, "after": 16}]
    assert document["backup"].startswith("prod.yaml.tuner-backup-")
    assert apply("profile.yaml", "prod.yaml", "--check").code == 0
    back = apply("--rollback", "prod.yaml", "--json").json
    assert back == {"file": "prod.yaml", "status": "restored"}


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_limit_that_undoes_the_choice_is_refused_with_the_change_shown(force: list[str]) -> None:
    text = "model: m\nmax-num-seqs: 9\nmax-num-active-seqs: 8\n"
    Path("prod.yaml").write_text(text)
    done = apply("profile.yaml", "prod.yaml", *force)
    assert (done.code, "prod.yaml:3: max_num_active_seqs is 8" in done.error) == (3, True)
    assert "-max-num-seqs: 9\n+max-num-seqs: 16\n" in done.stdout
    assert Path("prod.yaml").read_text() == text


def test_a_file_beside_that_decides_is_warned_of() -> None:
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
        done = apply("profile.yaml", file)
        assert (done.code, f"Warning: {place} " in done.stderr) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("image", "code", "warning"),
    [
        ("image: vllm/vllm-openai:v0.32.0", 0, ""),
        ("image: vllm/vllm-openai:v0.32.0rc1", 6, ""),
        ("image: vllm/vllm-openai:latest", 0, "c.yaml:3: vllm/vllm-openai:latest does not tell"),
        ('image: "vllm/a\\e[2J\\nb"', 0, "c.yaml:3: vllm/a\\x1b[2J\\nb does not tell"),
        ("build: .", 0, "c.yaml: no image tells"),
    ],
)
def test_an_image_that_does_not_tell_its_vllm_is_named(image: str, code: int, warning: str) -> None:
    Path("c.yaml").write_text(f"services:\n  v:\n    {image}\n    command: vllm serve m\n")
    done = apply("profile.yaml", "c.yaml", "--dry-run")
    warnings = [line for line in done.stderr.splitlines() if line.startswith("Warning: ")]
    assert (done.code, len(warnings)) == (code, bool(warning))
    assert f"Warning: {warning}" in done.stderr or not warning


MANIFEST = """\
kind: Deployment
metadata: {name: llm}
spec:
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


def test_an_image_of_another_vllm_is_refused_until_forced() -> None:
    Path("d.yaml").write_text(MANIFEST)
    words = ("profile.yaml", "d.yaml", "--container", "llm/b")
    done = apply(*words)
    assert (done.code, "vLLM 0.32.0, d.yaml:11 has 0.9.1" in done.error) == (6, True)
    assert "+        args: [--model=m, --max-num-seqs=16]\n" in done.stdout  # shown all the same
    forced = apply(*words, "--force")
    assert (forced.code, "vLLM 0.32.0, d.yaml:11 has 0.9.1" in forced.stderr) == (0, True)
    apply("--rollback", "d.yaml")
    assert Path("d.yaml").read_text() == MANIFEST


def test_admission_limits_are_set_when_wanted_with_their_reason() -> None:
    save(resealed(profile(), admission=admission()), Path("twin.yaml"))
    done = apply("twin.yaml", "--admission-limits")
    written = yaml.safe_load(Path("serve.yaml").read_text())
    limits = ("max-num-queued-tokens", "max-num-queued-reqs", "max-num-active-seqs")
    assert [written[name] for name in limits] == [2500, 24, 16]
    assert "  because max_num_queued_tokens 2500: a TTFT limit of 500 ms x" in done.stdout


@pytest.mark.parametrize("kind", monitor.KINDS)
def test_a_file_that_watches_is_written_known_again_replaced_and_taken_back(kind: str) -> None:
    before, file = names(), monitor.KINDS[kind]["file"]
    assert apply("profile.yaml", "--to", kind).stdout.startswith(f"{file}: written\n")
    first = Path(file).read_bytes()
    assert apply("profile.yaml", file, "--check").code == 0  # the kind stands in the file
    save(profile(seed=1), Path("later.yaml"))
    changed = apply("later.yaml", "--to", kind, file, "--json").json
    assert (changed["kind"], changed["status"], changed["changes"]) == (kind, "changed", [])
    Path("later.yaml").unlink()
    apply("--rollback", file)
    assert Path(file).read_bytes() == first
    Path(file).unlink()
    assert names() == before
    Path(file).write_text("groups: []\n")
    assert apply("profile.yaml", "--to", kind).code == 3


def test_an_undecided_profile_changes_and_watches_nothing_until_forced() -> None:
    save(profile(verdict="inconclusive", reason="inconclusive: noise"), Path("p.yaml"))
    done = apply("p.yaml", "prod.yaml")
    assert (done.code, "+max_num_seqs: 16" in done.stdout) == (5, True)
    assert apply("p.yaml", "--to", "prometheus-rules").code == 5
    assert apply("p.yaml", "--to", "prometheus-rules", "--force").code == 0
