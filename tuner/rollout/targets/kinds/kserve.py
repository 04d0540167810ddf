"""KServe: InferenceService, LLMInferenceService and the runtimes that they name. Pure.

How traffic is split between an old and a new revision is left as it is, unless ``with_canary``:
canaryTrafficPercent of an InferenceService, group and weight of an LLMInferenceService.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import yaml

from tuner.errors import TargetError
from tuner.rollout.targets import images
from tuner.rollout.targets.kinds.container_target import (
    ContainerFile,
    ContainerServer,
    choose,
)
from tuner.rollout.targets.kinds.containers import Container
from tuner.rollout.targets.kinds.workloads import of_pod
from tuner.rollout.targets.seam import Asked, Rollout, Stated
from tuner.rollout.targets.server import unsafe
from tuner.rollout.targets.yaml.file import YamlFile, outline, parse
from tuner.rollout.targets.yaml.nodes import entries, get, items, line_of, refuse_filled_in, text_at

NAME = "kserve"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
ON_THIS_MACHINE = False

MODEL_SERVICES = frozenset({"LLMInferenceService", "LLMInferenceServiceConfig"})
KINDS = MODEL_SERVICES | {"ClusterServingRuntime", "InferenceService", "ServingRuntime"}
_VARIABLE = "VLLM_ADDITIONAL_ARGS"
"""The runtime's own command ends in it; a list of arguments would replace that command's."""

_CANARY = "canaryTrafficPercent"
_MODE = "serving.kserve.io/deploymentMode"
_KNATIVE = frozenset({"Knative", "Serverless"})
"""Deployment modes in which KServe splits traffic; Knative was called Serverless before 0.16."""

_OTHER_BACKEND = re.compile(r"--(?:backend=(?!vllm|auto)\w+|task=(?!text_generation)\w+)")


def containers(file: YamlFile, asked: Asked) -> Iterator[Container]:
    del asked
    for document in file.roots:
        for one in _of_document(document):
            yield replace(one, document=document)


def _of_document(document: yaml.Node) -> Iterator[Container]:
    kind, spec = text_at(document, "kind"), get(document, "spec")
    name = text_at(document, "metadata", "name") or kind or ""
    if kind == "InferenceService":
        predictor = get(spec, "predictor")
        yield from _of_model(predictor, name)
        yield from of_pod(predictor, name)
    elif kind in MODEL_SERVICES:
        yield from _of_llm(spec, name)
    elif kind in KINDS:
        yield from of_pod(spec, name)


def _of_model(predictor: yaml.Node | None, workload: str) -> Iterator[Container]:
    """Yield the model that a runtime serves: its arguments are put behind the runtime's."""
    model = get(predictor, "model")
    if isinstance(model, yaml.MappingNode):
        yield Container(
            workload,
            "model",
            model,
            predictor,
            elsewhere=_model_of(get(model, "storageUri")),
            evidence=_runtime(model),
        )


def _runtime(model: yaml.MappingNode) -> str:
    """Return why the runtime that KServe chooses is vLLM; empty where it may be another.

    Of the runtime for Hugging Face's models vLLM is the backend unless another one is asked for.
    """
    format_ = text_at(model, "modelFormat", "name") or ""
    runtime = text_at(model, "runtime") or "kserve-huggingfaceserver"
    if format_.lower() == "vllm":
        return f"modelFormat {format_}"
    if format_ != "huggingface" or not runtime.startswith("kserve-huggingfaceserver"):
        return ""
    words = [word.value for word in items(get(model, "args")) if isinstance(word, yaml.ScalarNode)]
    joined = "\n".join(words).replace("--backend\n", "--backend=").replace("--task\n", "--task=")
    return "" if _OTHER_BACKEND.search(joined) else "modelFormat huggingface, whose backend is vLLM"


def _of_llm(spec: yaml.Node | None, workload: str) -> Iterator[Container]:
    model = _model_of(get(spec, "model", "uri"))
    for path in (("template",), ("worker",), ("prefill", "template"), ("prefill", "worker")):
        for one in of_pod(get(spec, *path), workload):
            name = one.name if path == ("template",) else f"{'-'.join(path)}-{one.name}"
            is_main = one.name == "main" and images.may_have_vllm(one.image)
            is_server = is_main and get(one.node, "command") is None
            yield replace(
                one,
                name=name,
                variable=_VARIABLE if is_server else "",
                elsewhere=model,
                evidence="LLMInferenceService, whose main container is vLLM" if is_server else "",
            )


def _model_of(uri: yaml.Node | None) -> dict[str, Stated]:
    if not isinstance(uri, yaml.ScalarNode):
        return {}
    return {"model": Stated(uri.value.removeprefix("hf://"), line_of(uri))}


def _rollout(server: ContainerServer) -> Rollout:
    name = shlex.quote(text_at(server.one.document, "metadata", "name") or "NAME")
    if mode(server.one.document) in _KNATIVE:
        return Rollout(
            "kubectl apply -f {file}",
            f"kubectl patch inferenceservice {name} --type merge "
            '-p \'{"spec":{"predictor":{"canaryTrafficPercent":0}}}\'',
        )
    return Rollout("kubectl apply -f {file}")


def mode(document: yaml.Node | None) -> str:
    """Return the deployment mode that a service asks for; empty where the cluster decides."""
    annotations = get(document, "metadata", "annotations")
    return text_at(annotations, _MODE) or ""


@dataclass(frozen=True, slots=True)
class _Server(ContainerServer):
    """A service, whose model the runtime for Hugging Face's models may call ``model_id``."""

    @property
    def stated(self) -> dict[str, Stated]:
        found = ContainerServer.stated.fget(self)  # type: ignore[attr-defined]
        for name in ("model_id", "model_dir"):
            if name in found:
                found.setdefault("model", found.pop(name))
        return dict(found)


_FILE = ContainerFile(containers, _rollout, server=_Server)
opened = _FILE.opened


def with_canary(text: str, percent: int, asked: Asked) -> tuple[str, Sequence[str]]:
    """Return the text of a service whose next revision gets so much of the traffic, and what to
    beware of; the revision before it keeps the rest.

    Raises TargetError for what is no InferenceService, or one that KServe splits no traffic of.
    """
    source = asked.source
    file = parse(text, source=source, tabs=True)
    one, _ = choose(file, list(containers(file, asked)), asked)
    predictor = one.pod
    if not isinstance(predictor, yaml.MappingNode) or id(predictor) not in _predictors(file):
        raise TargetError(
            f"{source}: {_CANARY} is of an InferenceService",
            hint="A canary of an LLMInferenceService is a second service in the same group.",
        )
    asked_for = mode(one.document)
    if asked_for and asked_for not in _KNATIVE:
        raise TargetError(
            f"{source}: KServe splits no traffic in deployment mode {asked_for}: {_CANARY} would "
            "be ignored, and all traffic go to the new revision",
            hint="Leave --canary out, or deploy the profile as a second service and send it a part "
            "of the traffic.",
        )
    found = entries(predictor).get(_CANARY)
    if found is None:
        file.add_key(predictor, _CANARY, percent)
    elif text_at(found) != str(percent):
        refuse_filled_in(found, _CANARY, source=source)
        file.set(found, percent)
    result = file.edits.result()
    after = parse(result, source=source, tabs=True)
    now = choose(after, list(containers(after, asked)), asked)[0].pod
    is_same = outline(file, {id(predictor): {_CANARY}}) == outline(after, {id(now): {_CANARY}})
    if not is_same or text_at(now, _CANARY) != str(percent):
        raise unsafe(source, _CANARY)
    warning = f"{source}: {_CANARY} counts in deployment mode Knative only, and the file names none"
    return result, () if asked_for else (warning,)


def _predictors(file: YamlFile) -> set[int]:
    services = [one for one in file.roots if text_at(one, "kind") == "InferenceService"]
    return {id(get(one, "spec", "predictor")) for one in services}
