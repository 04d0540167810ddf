"""The shipped examples of what people deploy with, and the profile that tests apply to them."""

import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.places import ROOT
from tests.support.profiles import profile
from tests.support.targets import write
from tuner.engines.seam import ArgumentValue
from tuner.profile.schema import ServingProfile
from tuner.rollout import rollout

FOLDER = ROOT / "examples" / "deploy"


@dataclass(frozen=True, slots=True)
class Example:
    """A file, and which kind it is."""

    file: str
    kind: str

    @property
    def text(self) -> str:
        return (FOLDER / self.file).read_text(encoding="utf-8")


EXAMPLES = (
    Example("compose.yaml", "compose"),
    Example("kubernetes.yaml", "kubernetes"),
    Example("statefulset.yaml", "kubernetes"),
    Example("kustomize/patch.yaml", "kustomize"),
    Example("kserve.yaml", "kserve"),
    Example("llm-inference-service.yaml", "kserve"),
    Example("production-stack-values.yaml", "helm-production-stack"),
    Example("llm-d-values.yaml", "helm-llm-d"),
    Example("vllm.service", "systemd"),
    Example("vllm.env", "env"),
)
"""Every file of examples/deploy that holds arguments."""

MODEL = "acme/translator-7b"
ENGINE: dict[str, ArgumentValue] = {
    "model": MODEL,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": True,
}

RAY = f"""\
applications:
- name: llm
  import_path: ray.serve.llm:build_openai_app
  args:
    llm_configs:
    - model_loading_config: {{model_id: t, model_source: {MODEL}}}
      engine_kwargs:
        max_num_seqs: 64
"""
CONFIGMAP = f"""\
apiVersion: v1
kind: ConfigMap
metadata: {{name: c}}
data:
  config.yaml: |
    model: {MODEL}
    max-num-seqs: 64
"""
QUADLET = f"[Container]\nImage=vllm/vllm-openai:v0.32.0\nExec=--model {MODEL} --max-num-seqs 64\n"
CHART = f"""\
image:
  repository: vllm/vllm-openai
  tag: v0.32.0
  command: [vllm, serve, {MODEL}, --max-num-seqs, '64']
resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""
VALUES = f"llm:\n  models:\n  - args: [--model={MODEL}, --max-num-seqs=64]\n"


def deployed(example: Example | None = None) -> ServingProfile:
    """Return a profile that was measured where the example is deployed, or on a CPU."""
    if example is not None and "NVIDIA-H200" in example.text:
        return profile(engine=ENGINE, device={"kind": "gpu", "name": "NVIDIA H200"})
    return profile(engine=ENGINE)


def applied(example: Example) -> str:
    """Return the example with the profile in it."""
    arguments = rollout.settings(deployed(), live_knob=False)
    return write(example.kind, example.text, arguments, source=example.file)


# How each kind's own programs make a command line of a file: what vLLM gets, without `vllm serve`.


def _pod(text: str) -> Any:  # noqa: ANN401 - YAML
    return next(iter(yaml.safe_load_all(text)))["spec"]["template"]["spec"]["containers"][0]


def in_shell(script: str, *, folder: Path | None = None) -> list[str]:
    """Return what a real shell hands to ``vllm serve``."""
    code = f"vllm() {{ shift; printf '%s\\0' \"$@\"; }}\n{script}"
    done = subprocess.run(["sh", "-c", code], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def _of_runtime(text: str) -> list[str]:
    """Return the words that the runtime leaves to vLLM; the model is its own business."""
    args = yaml.safe_load(text)["spec"]["predictor"]["model"]["args"]
    return [MODEL, *(word for word in args if not word.startswith("--model_"))]


def _of_stack(text: str) -> list[str]:
    """Return what the chart's template makes of the values."""
    spec = yaml.safe_load(text)["servingEngineSpec"]["modelSpec"][0]
    config = spec["vllmConfig"]
    caching = "--enable-prefix-caching" if config.get("enablePrefixCaching") else None
    switch = caching or "--no-enable-prefix-caching"
    return [
        spec["modelURL"],
        switch,
        "--max-num-seqs",
        str(config["maxNumSeqs"]),
        *config["extraArgs"],
    ]


def _of_llm_service(text: str) -> list[str]:
    spec = yaml.safe_load(text)["spec"]
    value = spec["template"]["containers"][0]["env"][0]["value"]
    return [spec["model"]["uri"].removeprefix("hf://"), *value.split()]


def _of_unit(text: str) -> list[str]:
    command = re.sub(r"\\\n", "", text).partition("ExecStart=")[2].partition("\n")[0]
    return shlex.split(command)[2:]


def _of_variable(text: str) -> list[str]:
    return in_shell(f"{text}\nvllm serve $VLLM_ARGS")


WORDS: dict[str, Callable[[str], list[str]]] = {
    "compose.yaml": lambda text: shlex.split(yaml.safe_load(text)["services"]["vllm"]["command"]),
    "kubernetes.yaml": lambda text: list(_pod(text)["args"]),
    "statefulset.yaml": lambda text: in_shell(_pod(text)["args"][0].replace("exec vllm", "vllm")),
    "kustomize/patch.yaml": lambda text: list(yaml.safe_load(text)[0]["value"]),
    "kserve.yaml": _of_runtime,
    "llm-inference-service.yaml": _of_llm_service,
    "production-stack-values.yaml": _of_stack,
    "llm-d-values.yaml": lambda text: [
        MODEL,
        *yaml.safe_load(text)["decode"]["containers"][0]["args"],
    ],
    "vllm.service": _of_unit,
    "vllm.env": _of_variable,
}
