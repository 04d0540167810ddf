"""The shipped examples of what people deploy with, and the profile that tests apply to them."""

from dataclasses import dataclass
from pathlib import Path

from tests.profiles import profile
from tuner import rollout
from tuner.engines.seam import ArgumentValue
from tuner.profile import ServingProfile
from tuner.targets import named

FOLDER = Path(__file__).parent.parent / "examples" / "deploy"


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


def deployed() -> ServingProfile:
    """Return a profile that was measured where the examples run."""
    return profile(
        engine=ENGINE,
        versions={"vllm": "0.32.0"},
        device={"kind": "gpu", "name": "NVIDIA H200"},
    )


def applied(example: Example) -> str:
    """Return the example with the profile in it."""
    arguments = rollout.settings(deployed(), live_knob=False)
    return named(example.kind).write(example.text, arguments, source=example.file)
