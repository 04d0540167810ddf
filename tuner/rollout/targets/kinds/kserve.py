"""KServe: InferenceService, LLMInferenceService and the runtimes that they name. Pure.

How traffic is split between an old and a new revision is left as it is, unless ``with_canary``:
canaryTrafficPercent of an InferenceService, group and weight of an LLMInferenceService.
"""

from collections.abc import Iterator
from dataclasses import replace

import yaml

from tuner.errors import TargetError
from tuner.rollout.targets.kinds.container_target import ContainerFile, unsafe
from tuner.rollout.targets.kinds.containers import Container, choose
from tuner.rollout.targets.kinds.kubernetes import of_pod
from tuner.rollout.targets.seam import Stated
from tuner.rollout.targets.yaml.file import YamlFile, outline, parse
from tuner.rollout.targets.yaml.nodes import entries, get, refuse_filled_in, text_at

NAME = "kserve"
DEFAULT_FILE = ""
SUFFIXES: tuple[str, ...] = (".yaml", ".yml")
START = "kubectl apply -f {file}"
ON_THIS_MACHINE = False

MODEL_SERVICES = frozenset({"LLMInferenceService", "LLMInferenceServiceConfig"})
KINDS = MODEL_SERVICES | {"ClusterServingRuntime", "InferenceService", "ServingRuntime"}
_VARIABLE = "VLLM_ADDITIONAL_ARGS"
"""The runtime's own command ends in it; a list of arguments would replace that command's."""

_CANARY = "canaryTrafficPercent"
_FORMATS = frozenset({"huggingface", "vllm"})


def containers(file: YamlFile) -> Iterator[Container]:
    for document in file.roots:
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
        served = (text_at(model, "modelFormat", "name") or "").lower()
        runtime = text_at(model, "runtime") or ""
        yield Container(
            workload,
            "model",
            model,
            predictor,
            elsewhere=_model_of(get(model, "storageUri")),
            is_vllm=served in _FORMATS or "vllm" in runtime.lower(),
        )


def _of_llm(spec: yaml.Node | None, workload: str) -> Iterator[Container]:
    model = _model_of(get(spec, "model", "uri"))
    for path in (("template",), ("worker",), ("prefill", "template"), ("prefill", "worker")):
        for one in of_pod(get(spec, *path), workload):
            name = one.name if path == ("template",) else f"{'-'.join(path)}-{one.name}"
            is_server = one.name == "main"
            yield replace(
                one,
                name=name,
                variable=_VARIABLE if is_server else "",
                elsewhere=model,
                is_vllm=is_server,
            )


def _model_of(uri: yaml.Node | None) -> dict[str, Stated]:
    if not isinstance(uri, yaml.ScalarNode):
        return {}
    return {"model": Stated(uri.value.removeprefix("hf://"), uri.start_mark.line + 1)}


_FILE = ContainerFile(containers)
platform, write = _FILE.platform, _FILE.write


def read(text: str, *, source: str, container: str | None = None) -> dict[str, Stated]:
    found = _FILE.read(text, source=source, container=container)
    if "model_id" in found:  # what the runtime for Hugging Face's models calls it
        found.setdefault("model", found.pop("model_id"))
    return found


def with_canary(text: str, percent: int, *, source: str, container: str | None) -> str:
    """Return the text of a service whose next revision gets so much of the traffic; the one before
    it keeps the rest. Raises TargetError for what is no InferenceService."""
    file = parse(text, source=source)
    predictor = choose(file, containers, container).pod
    if not isinstance(predictor, yaml.MappingNode) or id(predictor) not in _predictors(file):
        raise TargetError(
            f"{source}: {_CANARY} is of an InferenceService",
            hint="A canary of an LLMInferenceService is a second service in the same group.",
        )
    found = entries(predictor).get(_CANARY)
    if found is None:
        file.add_key(predictor, _CANARY, percent)
    elif text_at(found) != str(percent):
        refuse_filled_in(found, _CANARY, source=source)
        file.set(found, percent)
    result = file.edits.result()
    after = parse(result, source=source)
    now = choose(after, containers, container).pod
    is_same = outline(file, {id(predictor): {_CANARY}}) == outline(after, {id(now): {_CANARY}})
    if not is_same or text_at(now, _CANARY) != str(percent):
        raise unsafe(source, _CANARY)
    return result


def _predictors(file: YamlFile) -> set[int]:
    services = [one for one in file.roots if text_at(one, "kind") == "InferenceService"]
    return {id(get(one, "spec", "predictor")) for one in services}
