"""What tuner writes, as the programs read it that deploy it: each test needs one of them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deployments import EXAMPLES, FOLDER, Example, applied
from tests.support.places import ROOT
from tests.support.targets import write
from tuner.rollout.targets.seam import Asked

BY_FILE = {example.file: example for example in EXAMPLES}
COMPOSES = ("docker-compose", "docker-compose-2")
"""The Python program, and the Go program that took its place."""

FLAGS = ["--max-num-batched-tokens", "8192", "--enable-prefix-caching"]


def found(*names: str) -> str:
    """Return the first program of these names that is here, or skip the test."""
    for name in names:
        place = shutil.which(name) or shutil.which(name, path=ROOT / ".venv" / "tools")
        place = place or shutil.which(name, path=Path(sys.executable).parent)
        if place is not None:
            return place
    pytest.skip(f"no {' or '.join(names)} here")


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize("program", COMPOSES)
def test_docker_compose_reads_the_service(tmp_path: Path, program: str) -> None:
    compose = found(program)
    (tmp_path / "compose.yaml").write_text(applied(BY_FILE["compose.yaml"]))
    (tmp_path / ".env").write_text("HF_TOKEN=secret\n")
    done = subprocess.run(
        [compose, "-f", "compose.yaml", "config"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    command = yaml.safe_load(done.stdout)["services"]["vllm"]["command"]
    words = command.split() if isinstance(command, str) else command
    assert words[:5] == ["acme/translator-7b", "--port", "8000", "--max-num-seqs", "16"]
    assert words[5:] == ["--enable-prefix-caching", "--max-num-batched-tokens", "8192"]


@pytest.mark.parametrize("program", COMPOSES)
def test_docker_compose_undoubles_what_was_doubled(tmp_path: Path, program: str) -> None:
    compose = found(program)
    text = "services:\n  vllm:\n    image: vllm/vllm-openai\n    command: [acme/m]\n"
    from tuner.rollout.targets.kinds import compose as target  # noqa: PLC0415 - the name is taken above

    odd = "a$B ${C} $$ 'd' \"e\" %f"
    (tmp_path / "compose.yaml").write_text(write(target, text, {"tokenizer": odd}, source="f"))
    out = run(compose, "-f", "compose.yaml", "config", cwd=tmp_path)
    command = yaml.safe_load(out)["services"]["vllm"]["command"]
    assert [word.replace("$$", "$") for word in command] == ["acme/m", f"--tokenizer={odd}"]


@pytest.mark.parametrize("file", ["kubernetes.yaml", "statefulset.yaml"])
def test_the_manifests_fit_the_schemas_of_kubernetes(tmp_path: Path, file: str) -> None:
    validate = found("kubernetes-validate")
    (tmp_path / file).write_text(applied(BY_FILE[file]))
    out = run(validate, "--strict", file, cwd=tmp_path)
    assert "passed" in out
    assert "ERROR" not in out


def test_kustomize_puts_the_patched_arguments_into_the_deployment(tmp_path: Path) -> None:
    """All of examples/deploy/kustomize."""
    kubectl = found("kubectl", "kustomize")
    shutil.copytree(FOLDER / "kustomize", tmp_path / "k")
    (tmp_path / "k" / "patch.yaml").write_text(applied(BY_FILE["kustomize/patch.yaml"]))
    words = ["kustomize"] if kubectl.endswith("kubectl") else ["build"]
    out = run(kubectl, *words, "k", cwd=tmp_path)
    container = yaml.safe_load(out)["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == [
        "--model=acme/translator-7b",
        "--max-num-seqs=16",
        "--max-num-batched-tokens=8192",
        "--enable-prefix-caching",
    ]


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = runnable(applied(BY_FILE["vllm.service"]), tmp_path)
    verified(tmp_path, {"vllm.service": text})


def test_systemd_takes_the_unit_with_a_drop_in(tmp_path: Path) -> None:
    from tuner.rollout.targets.kinds import systemd  # noqa: PLC0415 - only here

    unit = runnable(BY_FILE["vllm.service"].text, tmp_path)
    begin = systemd.drop_in(unit, Asked("vllm.service"))
    text = write(systemd, begin, {"max_num_seqs": 16, "tokenizer": "a 'b' \"c\" $d %e"}, source="f")
    (tmp_path / "vllm.service.d").mkdir()
    verified(tmp_path, {"vllm.service": unit, "vllm.service.d/tuner.conf": text})


def runnable(text: str, folder: Path) -> str:
    """Return the unit with a program that is there."""
    program = folder / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return text.replace("/opt/vllm/bin/vllm", str(program)).replace("User=vllm\n", "")


def verified(folder: Path, units: dict[str, str]) -> None:
    analyze = found("systemd-analyze")
    for name, text in units.items():
        (folder / name).write_text(text)
    out = run(analyze, "verify", "--man=no", str(folder / "vllm.service"), cwd=folder)
    assert out == ""


def test_a_shell_splits_the_variable_into_the_flags(tmp_path: Path) -> None:
    (tmp_path / "vllm.env").write_text(applied(BY_FILE["vllm.env"]))
    script = "set -a; . ./vllm.env; printf '%s\\n' $VLLM_ARGS"
    assert run("sh", "-c", script, cwd=tmp_path).splitlines() == [
        "acme/translator-7b",
        "--port=8000",
        "--max-num-seqs=16",
        "--max-num-batched-tokens=8192",
        "--enable-prefix-caching",
    ]


def rendered(example: Example) -> Any:  # noqa: ANN401 - YAML
    return yaml.safe_load(applied(example))


def test_the_values_say_what_the_charts_look_for() -> None:
    spec = rendered(BY_FILE["production-stack-values.yaml"])["servingEngineSpec"]["modelSpec"][0]
    assert spec["vllmConfig"] == {
        "maxNumSeqs": 16,
        "enablePrefixCaching": True,
        "extraArgs": ["--disable-log-stats", "--max-num-batched-tokens=8192"],
    }
    args = rendered(BY_FILE["llm-d-values.yaml"])["decode"]["containers"][0]["args"]
    assert args[:2] == ["--max-num-seqs", "16"]
    assert args[4:] == FLAGS
    assert json.loads(args[3])["kv_role"] == "kv_both"
