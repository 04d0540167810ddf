"""What a file shows decides: whether it is vLLM, which model it serves, where the value lives."""

import json
import os
from pathlib import Path

import pytest

from tests.commands.apply.test_apply import Tuner, refused, tuner  # noqa: F401 - the fixture
from tests.support.deployments import (
    CHART,
    CONFIGMAP,
    ENGINE,
    FOLDER,
    MODEL,
    QUADLET,
    RAY,
    VALUES,
)
from tests.support.profiles import profile
from tuner.profile.profile import save

COMPOSE = f"""\
services:
  vllm:
    image: vllm/vllm-openai:v0.32.0
    command: --model {MODEL} --max-num-seqs ${{SLOTS:-64}}
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    image: %s
    args: [--model=%s, --max-num-seqs=64]
"""
VLLM = "vllm/vllm-openai:v0.32.0"
ADDED = "--max-num-batched-tokens 8192 --enable-prefix-caching"


@pytest.fixture
def run(tuner: Tuner) -> Tuner:  # noqa: F811 - the fixture
    save(profile(engine=ENGINE), Path("p.yaml"))
    return tuner


def override(file: str) -> list[str]:
    record = json.loads(Path(f"{file}.tuner-backup.json").read_text())
    found = record["writes"][-1]["override"]["despite"]
    assert isinstance(found, list)
    return found


def test_a_default_of_compose_is_changed_where_it_stands(run: Tuner) -> None:
    Path("c.yaml").write_text(COMPOSE)
    assert run("apply", "p.yaml", "c.yaml").exit_code == 0
    assert Path("c.yaml").read_text() == COMPOSE.replace("64}", f"16}} {ADDED}")


def test_a_value_in_an_env_file_is_changed_there_by_the_cure_that_is_printed(run: Tuner) -> None:
    Path("compose.yaml").write_text(COMPOSE)
    Path(".env").write_text("# slots\nSLOTS=32\n")
    done = run("apply", "p.yaml", "compose.yaml")
    assert refused(done, 3) == (
        "compose.yaml:4: max_num_seqs is decided elsewhere: ${SLOTS:-64}, which is set in .env:2"
    )
    cure = done.err.splitlines()[1].rpartition("PROFILE ")[2]
    assert run("apply", "p.yaml", cure).exit_code == 0
    assert Path(".env").read_text() == "# slots\nSLOTS=16\n"
    assert run("apply", "p.yaml", "compose.yaml").exit_code == 0
    assert run("diff", "p.yaml", "compose.yaml", "--check").out == "no difference\n"


def test_a_name_of_a_container_makes_no_server_and_force_does_on_record(run: Tuner) -> None:
    text = POD % ("acme/vllm-ui:v1", MODEL)
    Path("pod.yaml").write_text(text)
    for words in ((), ("--container", "c"), ("--to", "kubernetes"), ("--force",)):
        assert "p/c is not seen to run vLLM" in refused(
            run("apply", "p.yaml", "pod.yaml", *words), 3
        )
    assert Path("pod.yaml").read_text() == text
    assert run("apply", "p.yaml", "pod.yaml", "--container", "c", "--force").exit_code == 0
    assert override("pod.yaml") == ["nothing in pod.yaml shows that it starts vLLM"]


def test_a_model_that_cannot_be_told_is_refused_shown_and_named(run: Tuner) -> None:
    text = POD % (VLLM, "$(M)") + "    envFrom: [{configMapRef: {name: models}}]\n"
    Path("pod.yaml").write_text(text)
    why = f"model {MODEL}, pod.yaml:8 has $(M), which comes from the ConfigMap models"
    assert refused(run("apply", "p.yaml", "pod.yaml"), 6).endswith(why)
    assert Path("pod.yaml").read_text() == text
    assert (
        "not known here: comes from the ConfigMap models" in run("diff", "p.yaml", "pod.yaml").out
    )
    assert "measured with acme/translator-7b" in refused(
        run("apply", "p.yaml", "pod.yaml", "--model-is", "acme/other"), 6
    )
    assert run("apply", "p.yaml", "pod.yaml", "--model-is", MODEL).exit_code == 0
    assert override("pod.yaml") == [f"{why}: --model-is {MODEL}"]


def test_force_writes_nothing_of_another_model(run: Tuner) -> None:
    engine = {**ENGINE, "model": "acme/n", "dtype": "float32", "max_model_len": 99}
    save(profile(engine={**engine, "load_format": "dummy"}), Path("n.yaml"))
    Path("pod.yaml").write_text(POD % (VLLM, MODEL))
    assert run("apply", "n.yaml", "pod.yaml", "--force").exit_code == 0
    edited = Path("pod.yaml").read_text()
    assert "--max-num-seqs=16" in edited
    assert [one for one in ("dtype", "max-model-len", "load-format") if one in edited] == []


def test_of_a_simulated_profile_the_cap_is_written_and_nothing_else(run: Tuner) -> None:
    engine = {**ENGINE, "dtype": "float32", "num_gpu_blocks_override": 99}
    save(profile(engine=engine, engine_="sim"), Path("sim.yaml"))
    Path("pod.yaml").write_text(POD % (VLLM, MODEL))
    assert run("apply", "sim.yaml", "pod.yaml").exit_code == 0
    assert Path("pod.yaml").read_text() == (POD % (VLLM, MODEL)).replace("seqs=64]", "seqs=16]")
    text = (POD % (VLLM, MODEL)).replace("seqs=64]", "seqs=64, --max-num-batched-tokens=8]")
    Path("pod.yaml").write_text(text)
    found = refused(run("apply", "sim.yaml", "pod.yaml", "--force"), 3)
    assert "max_num_batched_tokens is 8, less than the max_num_seqs 16" in found
    assert Path("pod.yaml").read_text() == text


FORBIDDEN = {
    "allowed_local_media_path": "/",
    "api_key": "x",
    "middleware": ["a.b"],
    "scheduler_cls": "a.B",
    "tool_parser_plugin": "/tmp/a.py",
    "trust_remote_code": True,
    "worker_cls": "a.B",
}


@pytest.mark.attack
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("serve.yaml", f"model: {MODEL}\nmax-num-seqs: 64\n"),
        ("c.yaml", COMPOSE),
        ("pod.yaml", POD % (VLLM, MODEL)),
        ("v.service", f"[Service]\nExecStart=/bin/vllm serve {MODEL}\n"),
        ("v.env", f"VLLM_ARGS='--model={MODEL} --max-num-seqs=64'\n"),
        ("isvc.yaml", None),
    ],
)
def test_what_a_profile_may_not_set_is_named_and_never_written(
    run: Tuner, file: str, text: str | None
) -> None:
    save(profile(engine={**ENGINE, **FORBIDDEN}), Path("evil.yaml"))
    Path(file).write_text(text or (FOLDER / "kserve.yaml").read_text())
    done = run("apply", "evil.yaml", file)
    assert done.exit_code == 0
    assert f"left as the deployment has it: {', '.join(FORBIDDEN)}\n" in done.err
    edited = Path(file).read_text().replace("-", "_")
    assert "max_num_batched_tokens" in edited
    assert [name for name in FORBIDDEN if name in edited] == []


PROTECTS = {"api_key": "sesame", "host": "127.0.0.1", "ssl_certfile": "c.pem"}


@pytest.mark.attack
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("serve.yaml", f"model: {MODEL}\nmax-num-seqs: 64\n%s"),
        ("pod.yaml", (POD % (VLLM, MODEL)).replace("seqs=64]", "seqs=64%s]")),
        ("v.service", f"[Service]\nExecStart=/bin/vllm serve {MODEL} --max-num-seqs=64%s\n"),
        ("v.env", f"VLLM_ARGS='--model={MODEL} --max-num-seqs=64%s'\n"),
    ],
)
def test_what_a_profile_may_not_set_it_cannot_take_away(run: Tuner, file: str, text: str) -> None:
    before = ", --" if file == "pod.yaml" else " --"
    is_map, flags = (
        file == "serve.yaml",
        {name.replace("_", "-"): v for name, v in PROTECTS.items()},
    )
    own = "".join(
        f"{name}: {v}\n" if is_map else f"{before}{name}={v}" for name, v in flags.items()
    )
    save(profile(engine={**ENGINE, **dict.fromkeys(PROTECTS)}), Path("open.yaml"))
    Path(file).write_text(text % own)
    done = run("apply", "open.yaml", file)
    assert done.exit_code == 0, done.err
    assert "left as the deployment has it: api_key, host, ssl_certfile\n" in done.err
    edited = Path(file).read_text()
    assert "max-num-seqs=16" in edited or "max-num-seqs: 16" in edited
    assert [v for v in PROTECTS.values() if v not in edited] == []


@pytest.mark.attack
@pytest.mark.parametrize(
    ("name", "value", "has"),
    [
        ("load_format", "dummy", "auto"),
        ("revision", "refs/pr/7", "none"),
        ("runner", "pooling", "auto"),
        ("tokenizer", "evil/tokenizer", "none"),
        ("tokenizer_revision", "refs/pr/7", "none"),
    ],
)
def test_what_is_served_is_the_deployments_own(run: Tuner, name: str, value: str, has: str) -> None:
    save(profile(engine={**ENGINE, name: value}), Path("evil.yaml"))
    Path("pod.yaml").write_text(POD % (VLLM, MODEL))
    said = refused(run("apply", "evil.yaml", "pod.yaml"), 6)
    assert said.endswith(f"elsewhere: {name} {value}, pod.yaml has {has}")
    assert run("apply", "evil.yaml", "pod.yaml", "--force").exit_code == 0
    assert value not in Path("pod.yaml").read_text()
    assert override("pod.yaml") == [f"{name} {value}, pod.yaml has {has}"]


def test_a_profile_that_does_not_say_where_it_was_measured_is_refused(run: Tuner) -> None:
    Path("pod.yaml").write_text(POD % (VLLM, MODEL))
    save(profile(engine=ENGINE, device={}, versions={}), Path("nowhere.yaml"))
    assert refused(run("apply", "nowhere.yaml", "pod.yaml"), 6).endswith(
        "no device and no vLLM: the profile does not say which"
    )


def test_what_a_later_file_decides_is_said_with_its_place(run: Tuner) -> None:
    for one in (FOLDER / "kustomize").iterdir():
        Path(one.name).write_text(one.read_text())
    assert refused(run("apply", "p.yaml", "deployment.yaml"), 3) == (
        "deployment.yaml: the arguments are decided elsewhere: patch.yaml:5 replaces args"
    )
    said = run("diff", "p.yaml", "deployment.yaml").out
    assert said.count("decided elsewhere: patch.yaml:5") == 3


def test_an_override_of_compose_decides(run: Tuner) -> None:
    Path("compose.yaml").write_text(COMPOSE)
    Path("compose.override.yaml").write_text("services:\n  vllm:\n    command: [--port=1]\n")
    assert refused(run("apply", "p.yaml", "compose.yaml"), 3).endswith(
        "decided elsewhere: compose.override.yaml:3 sets command"
    )


def test_a_patch_without_a_list_gets_the_operations_to_paste(run: Tuner) -> None:
    text = (
        "kind: Deployment\nmetadata: {name: d}\n"
        "spec: {template: {spec: {containers: [{name: c}]}}}\n"
    )
    Path("patch.yaml").write_text(text)
    done = run("apply", "p.yaml", "patch.yaml")
    assert "d/c has no args here" in refused(done, 3)
    operations = json.loads(done.err.splitlines()[1].partition(": ")[2])
    assert operations[0] == {
        "op": "add",
        "path": "/spec/template/spec/containers/0/args/-",
        "value": "--max-num-seqs=16",
    }
    assert Path("patch.yaml").read_text() == text


@pytest.mark.parametrize("mode", ["RawDeployment", "Standard"])
def test_a_canary_is_refused_where_kserve_splits_no_traffic(run: Tuner, mode: str) -> None:
    text = (FOLDER / "kserve.yaml").read_text()
    annotated = f"metadata:\n  annotations: {{serving.kserve.io/deploymentMode: {mode}}}\n"
    Path("isvc.yaml").write_text(text.replace("metadata:\n", annotated))
    assert f"deployment mode {mode}" in refused(
        run("apply", "p.yaml", "isvc.yaml", "--canary", "10"), 3
    )
    Path("isvc.yaml").write_text(text)
    done = run("apply", "p.yaml", "isvc.yaml", "--canary", "10")
    assert "counts in deployment mode Knative only" in done.err


KINDS: dict[str, tuple[str, list[str], str]] = {
    "ray.yaml": (RAY, [], "ray-serve"),
    "cm.yaml": (CONFIGMAP, [], "configmap"),
    "v.container": (QUADLET, [], "quadlet"),
    "values.yaml": (CHART, [], "helm-values"),
    "own.yaml": (VALUES, ["--at", "llm.models[0].args"], "helm-values"),
    "h.env": (f"H2OGPT_VLLM_ARGS='--model={MODEL} --max-num-seqs=64'\n", [], "env"),
}


@pytest.mark.parametrize("file", KINDS)
def test_a_kind_is_found_edited_once_and_rolled_back(run: Tuner, file: str) -> None:
    text, words, kind = KINDS[file]
    Path(file).write_text(text)
    done = run("apply", "p.yaml", file, *words, "--json")
    assert (json.loads(done.out)["kind"], json.loads(done.out)["status"]) == (kind, "changed")
    edited = Path(file).read_text()
    assert edited.count("16") == text.count("64")
    assert "64" not in edited
    assert "nothing to change" in run("apply", "p.yaml", file, *words).out
    run("apply", "--rollback", file)
    assert Path(file).read_text() == text


def test_values_of_a_chart_are_asked_for_the_path_that_they_hold(run: Tuner) -> None:
    Path("own.yaml").write_text(VALUES)
    done = run("apply", "p.yaml", "own.yaml")
    assert done.err.splitlines()[1].endswith("say where: --at llm.models[0].args")


def test_a_switch_of_older_versions_does_not_swallow_the_next_word(run: Tuner) -> None:
    script = f"exec vllm serve {MODEL} --disable-log-requests $MORE"
    Path("v.service").write_text(f"[Service]\nExecStart=/bin/sh -c '{script}'\n")
    assert "$MORE may hold more flags" in refused(run("apply", "p.yaml", "v.service"), 3)


OWN_NAME = """\
services:
  v:
    image: acme/runtime:1
    entrypoint: python3.10
    command: -m vllm.entrypoints.openai.api_server --port=5000 ${ACME_ARGS}
    environment: [A=1]
"""


def test_a_variable_of_flags_is_proven_by_the_compose_file_that_reads_it(run: Tuner) -> None:
    Path("docker-compose-vllm.yml").write_text(OWN_NAME)
    text = f'ACME_ARGS="--model={MODEL} --seed 1234 --trust-remote-code"\n'
    Path(".env").write_text(text)
    done = run("diff", "p.yaml", ".env")
    assert "max_num_seqs            16      -" in done.out
    done = run("apply", "p.yaml", ".env")
    assert (done.exit_code, done.err) == (0, "")
    assert "start: docker compose -f docker-compose-vllm.yml up -d\n" in done.out
    added = ADDED.replace("tokens ", "tokens=")
    assert Path(".env").read_text() == f'{text[:-2]} --max-num-seqs=16 {added}"\n'
    assert "nothing to change" in run("apply", "p.yaml", ".env").out
    assert "nothing to change" in run("apply", "p.yaml", "docker-compose-vllm.yml").out
    run("apply", "--rollback", ".env")
    assert Path(".env").read_text() == text


def test_flags_in_a_variable_elsewhere_are_changed_there_by_the_cure_that_is_printed(
    run: Tuner,
) -> None:
    Path("compose.yaml").write_text(OWN_NAME)
    Path(".env").write_text(f'ACME_ARGS="--model={MODEL} --max-num-seqs=64"\n')
    done = run("apply", "p.yaml", "compose.yaml")
    assert refused(done, 3) == (
        "compose.yaml:5: --max-num-seqs=64 stands in ACME_ARGS, which is set in .env:1"
    )
    cure = done.err.splitlines()[1].rpartition("PROFILE ")[2]
    assert run("apply", "p.yaml", cure).exit_code == 0
    assert run("apply", "p.yaml", "compose.yaml").exit_code == 0
    assert run("diff", "p.yaml", "compose.yaml", "--check").out == "no difference\n"


def test_the_model_of_a_variable_of_flags_is_that_of_the_compose_file(run: Tuner) -> None:
    Path(".env").write_text('ACME_ARGS="--max-num-seqs=64"\n')
    Path("compose.yaml").write_text(OWN_NAME.replace("--port=5000", "--model=acme/other"))
    assert "acme/other" in refused(run("apply", "p.yaml", ".env"), 6)
    Path("compose.yaml").write_text(OWN_NAME.replace("--port=5000", f"--model={MODEL}"))
    assert run("apply", "p.yaml", ".env").exit_code == 0
    assert "--max-num-seqs=16 " in Path(".env").read_text()


def test_a_flag_of_the_compose_file_itself_is_left_to_it(run: Tuner) -> None:
    Path("compose.yaml").write_text(OWN_NAME.replace("--port=5000", "--max-num-seqs=64"))
    Path(".env").write_text(f"ACME_ARGS=--model={MODEL}\n")
    done = run("apply", "p.yaml", ".env")
    assert "the flags that compose.yaml states stay: apply the profile there, too" in done.err
    added = ADDED.replace("tokens ", "tokens=")
    assert Path(".env").read_text() == f'ACME_ARGS="--model={MODEL} {added}"\n'
    assert run("apply", "p.yaml", "compose.yaml").exit_code == 0
    assert "--max-num-seqs=16 ${ACME_ARGS}" in Path("compose.yaml").read_text()
    both = Path(".env").read_text().replace("--model", "--max-num-seqs=64 --model")
    Path(".env").write_text(both)
    assert refused(run("apply", "p.yaml", ".env"), 3) == (
        "compose.yaml:5: states max_num_seqs as well as .env:1"
    )


def test_a_compose_file_that_starts_something_else_proves_no_variable(run: Tuner) -> None:
    command = "python3 -m acme.server ${ACME_ARGS}"
    Path("compose.yaml").write_text(f"services: {{a: {{image: acme/x, command: '{command}'}}}}\n")
    Path(".env").write_text(f'ACME_ARGS="--model={MODEL} --seed 1"\n')
    assert "no variable in it is seen to hold vLLM's flags" in refused(
        run("apply", "p.yaml", ".env"), 3
    )
    assert Path(".env").read_text() == f'ACME_ARGS="--model={MODEL} --seed 1"\n'


def test_a_variable_within_a_variable_of_flags_stays_and_is_named(run: Tuner) -> None:
    text = f'VLLM_ARGS="{MODEL} --max-num-seqs=64 --disable-log-requests $MORE"\n'
    Path("v.env").write_text(text)
    done = run("apply", "p.yaml", "v.env")
    assert done.exit_code == 0
    assert done.err == (
        "Warning: v.env:1: $MORE is not set here and stays: a flag in it decides over one before "
        "it\n"
    )
    added = ADDED.replace("tokens ", "tokens=")
    assert Path("v.env").read_text() == text.replace("64", "16").replace("MORE", f"MORE {added}")
    Path("v.env").write_text(f"MORE='--max-num-seqs=8'\n{text}")
    done = run("apply", "p.yaml", "v.env", "--container", "VLLM_ARGS")
    assert "states max_num_seqs a second time" in refused(done, 3)
    Path("v.env").write_text(f"MORE='--seed 1'\n{text}")
    done = run("apply", "p.yaml", "v.env")
    assert (done.exit_code, done.err) == (0, "")


@pytest.mark.parametrize("command", ["apply", "diff"])
def test_a_long_value_is_shown_in_short(run: Tuner, command: str) -> None:
    Path("v.env").write_text(f'VLLM_ARGS="{MODEL} --max-num-seqs={"9" * 5000}"\n')
    done = run(command, "p.yaml", "v.env")
    assert done.exit_code == 0
    assert "99..." in done.out
    assert len(done.out) < 1000


def test_a_refusal_names_the_repository_that_a_chart_starts(run: Tuner) -> None:
    spec = f"[{{name: m, repository: acme/ui, modelURL: {MODEL}}}]"
    Path("values.yaml").write_text(f"servingEngineSpec: {{modelSpec: {spec}}}\n")
    found = refused(run("apply", "p.yaml", "values.yaml"), 3)
    assert found.endswith("it starts what the image acme/ui starts")


def test_a_refusal_says_that_an_image_is_built_here(run: Tuner) -> None:
    Path("compose.yaml").write_text("services: {a: {build: .}}\n")
    assert "it starts what is built here" in refused(run("apply", "p.yaml", "compose.yaml"), 3)


def test_tabs_and_items_without_a_value_are_read(run: Tuner) -> None:
    text = COMPOSE.replace("v0.32.0\n", "v0.32.0\t# why\n") + "    ports: [null]\n    tty:\n"
    Path("c.yaml").write_text(text)
    assert run("apply", "p.yaml", "c.yaml").exit_code == 0
    assert Path("c.yaml").read_text() == text.replace("64}", f"16}} {ADDED}")


@pytest.mark.parametrize("how", [[], ["--dry-run"]])
def test_what_is_refused_prints_the_diff_and_then_the_refusal(run: Tuner, how: list[str]) -> None:
    text = POD % (VLLM, "acme/other")
    Path("pod.yaml").write_text(text)
    done = run("apply", "p.yaml", "pod.yaml", *how)
    assert done.exit_code == 6
    assert done.out.startswith("--- pod.yaml\n+++ pod.yaml\n")
    assert "has acme/other" in done.err.splitlines()[-2]
    assert Path("pod.yaml").read_text() == text


def test_what_rolls_out_and_back_is_printed_to_paste(run: Tuner) -> None:
    text = (FOLDER / "statefulset.yaml").read_text()
    Path("s.yaml").write_text(text)
    assert run("apply", "p.yaml", "s.yaml").out.splitlines()[-2:] == [
        "start: kubectl apply -f s.yaml",
        "undo: tuner apply --rollback s.yaml && kubectl rollout undo statefulset/translator",
    ]


_PATHS = ("deploy/d.yaml", "patches/p.yaml")
WITHOUT_SELECTOR = f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: d}}
spec:
  template:
    spec:
      containers:
      - name: c
        image: {VLLM}
        args: [--model={MODEL}, --max-num-seqs=64]
"""


@pytest.mark.parametrize(
    ("kustomization", "start"),
    [
        (None, "kubectl apply -k FOLDER"),
        ("patches: [{path: d.yaml}]\n", "kubectl apply -k ."),
        ("resources: [d.yaml]\n", "kubectl apply -f d.yaml"),
    ],
)
def test_a_workload_without_a_selector_is_what_the_kustomization_makes_it(
    run: Tuner, kustomization: str | None, start: str
) -> None:
    """Kubernetes takes no such Deployment, so without one it is a patch from elsewhere."""
    Path("d.yaml").write_text(WITHOUT_SELECTOR)
    if kustomization is not None:
        Path("kustomization.yaml").write_text(kustomization)
    assert f"start: {start}" in run("apply", "p.yaml", "d.yaml").out.splitlines()
    assert "--max-num-seqs=16" in Path("d.yaml").read_text()


def test_a_resource_without_a_selector_is_left_where_a_patch_decides(run: Tuner) -> None:
    Path("d.yaml").write_text(WITHOUT_SELECTOR)
    Path("kustomization.yaml").write_text("resources: [d.yaml]\npatches: [{path: p2.yaml}]\n")
    Path("p2.yaml").write_text(WITHOUT_SELECTOR.replace("64", "32"))
    assert "p2.yaml:10" in refused(run("apply", "p.yaml", "d.yaml"), 3)
    assert Path("d.yaml").read_text() == WITHOUT_SELECTOR


@pytest.mark.parametrize(("folder", "above"), [(".", "."), ("deploy", "..")])
def test_a_patch_of_a_kustomization_above_decides_from_wherever_it_is_asked(
    run: Tuner, folder: str, above: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = WITHOUT_SELECTOR.replace("spec:\n  t", "spec:\n  selector: {}\n  t")
    for name, text in {
        "deploy/d.yaml": whole,
        "patches/p.yaml": WITHOUT_SELECTOR,
        "kustomization.yaml": "resources: [deploy/d.yaml]\npatches: [{path: patches/p.yaml}]\n",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    profile_, d, p = (os.path.relpath(one, folder) for one in ("p.yaml", *_PATHS))
    monkeypatch.chdir(folder)
    assert refused(run("apply", profile_, d), 3).endswith(f"elsewhere: {p}:10 replaces args")
    done = run("apply", profile_, p)
    assert f"start: kubectl apply -k {above}\n" in done.out
    assert Path(d).read_text() == whole


def test_a_workload_without_selector_and_args_is_refused_with_both_cures(run: Tuner) -> None:
    text = "".join(WITHOUT_SELECTOR.splitlines(keepends=True)[:-1])
    Path("d.yaml").write_text(text)
    done = run("apply", "p.yaml", "d.yaml")
    assert refused(done, 3).startswith("d.yaml:8: d/c has no args here")
    assert "--to kubernetes, if it is no patch but a whole workload" in done.err
    assert Path("d.yaml").read_text() == text


@pytest.mark.parametrize("words", ["command: [/app/bench.sh]", "image: acme/vllm-ui"])
def test_a_patch_that_starts_another_program_than_its_base_is_refused(
    run: Tuner, words: str
) -> None:
    Path("base.yaml").write_text(WITHOUT_SELECTOR)
    Path("kustomization.yaml").write_text("resources: [base.yaml]\npatches: [{path: d.yaml}]\n")
    patch = WITHOUT_SELECTOR.replace(f"image: {VLLM}", words)
    Path("d.yaml").write_text(patch)
    assert "d/c is not seen to run vLLM" in refused(run("apply", "p.yaml", "d.yaml"), 3)
    assert Path("d.yaml").read_text() == patch


DIGITS = "9" * 5_000
"""Python reads no text of more than 4300 digits as a number."""


@pytest.mark.parametrize(
    ("file", "text", "code"),
    [
        ("c.yaml", "max-num-seqs: 64\n", 3),
        ("r.yaml", RAY, 3),
        ("m.yaml", CONFIGMAP, 3),
        ("pod.yaml", POD % (VLLM, MODEL), 0),
        ("v.env", f"VLLM_ARGS='--model={MODEL} --max-num-seqs=64'\n", 0),
        ("v.container", QUADLET, 0),
    ],
)
def test_a_number_of_too_many_digits_is_replaced_as_a_word_and_refused_as_a_number(
    run: Tuner, file: str, text: str, code: int
) -> None:
    long = text.replace("64", DIGITS)
    Path(file).write_text(long)
    done = run("apply", "p.yaml", file)
    assert (done.exit_code, len(done.err) < 1_000) == (code, True)
    if code:
        assert Path(file).read_text() == long
    else:
        assert DIGITS not in Path(file).read_text()


@pytest.mark.attack
@pytest.mark.parametrize(
    "value", [":".join("1" * 3000), "0b1" + "_1" * 30_000, "0x" + "f" * 9_000, "1:" * 3000 + "1.5"]
)
def test_a_number_that_takes_long_to_read_is_refused_with_its_place(run: Tuner, value: str) -> None:
    text = f"model: {MODEL}\nmax-num-seqs: 64\nother: {value}\n"
    Path("c.yaml").write_text(text)
    found = refused(run("apply", "p.yaml", "c.yaml"), 3)
    assert found == f"c.yaml:3: a number of {len(value)} characters"
    assert Path("c.yaml").read_text() == text
