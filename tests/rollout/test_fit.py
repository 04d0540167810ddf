"""What a profile means for a deployment, and what speaks against it."""

import pytest

from tests.support.profiles import ENGINE, profile
from tuner.engines.models import shipped as models
from tuner.engines.seam import ArgumentValue
from tuner.errors import InputError
from tuner.rollout import fit
from tuner.rollout.fit import Deployment, Host
from tuner.rollout.known import vllm_version

GPU = {"kind": "gpu", "name": "NVIDIA H200", "memory_bytes": 150 * 10**9}
H200 = Host("here is", "0.32.0", "NVIDIA H200")


def here(*hosts: Host, **stated: ArgumentValue) -> Deployment:
    return Deployment(arguments={"model": "m", **stated}, source="f", hosts=hosts)


@pytest.mark.parametrize(
    ("given", "stated", "more"),
    [
        ([], {}, {}),
        ([], {"max_num_batched_tokens": 2048}, {"max_num_batched_tokens": 8192}),
        (["max_num_batched_tokens", "model"], {}, {"max_num_batched_tokens": 8192}),
        (["trust_remote_code", "worker_cls"], {}, {}),
    ],
)  # fmt: skip
def test_what_is_written_is_what_was_chosen_and_what_the_file_says_otherwise(
    given: list[str], stated: dict[str, ArgumentValue], more: dict[str, ArgumentValue]
) -> None:
    unsafe = {"trust_remote_code": True, "worker_cls": "a.B"}
    chosen = profile(engine={**ENGINE, **unsafe}, given=given)
    assert fit.wanted(chosen, stated, pin=False) == {"max_num_seqs": 16} | more


def test_a_shipped_model_is_written_by_its_path() -> None:
    chosen = profile(engine={**ENGINE, "model": "tuner:tiny"})
    assert fit.settings(chosen)["model"] == models.model_path("tuner:tiny")
    with pytest.raises(InputError, match="tuner:huge does not ship"):
        fit.settings(profile(engine={**ENGINE, "model": "tuner:huge"}))


@pytest.mark.parametrize(
    ("stated", "clashes"),
    [
        ({"max_num_active_seqs": 8}, True),
        ({"max_num_scheduled_tokens": 8}, True),
        ({"kv_cache_memory_bytes": 1}, True),
        ({"num_gpu_blocks_override": 1}, True),
        ({"max_num_active_seqs": 16, "max_num_scheduled_tokens": 8192}, False),
    ],
)
def test_an_argument_that_would_undo_the_choice_is_refused(
    stated: dict[str, ArgumentValue], clashes: bool
) -> None:
    assert (fit.clash(here(**stated), fit.settings(profile())) is not None) is clashes


MEASURED = {"versions": {"vllm": "0.32.0"}, "device": GPU}
FOUND: list[tuple[dict[str, object], Deployment, list[str]]] = [
    ({}, here(), []),
    ({}, here(Host("here is", "0.32.0+cu130", "NVIDIA H200")), []),
    ({}, here(Host("here is", "0.32.0", None)), ["NVIDIA H200, here is a CPU"]),
    ({}, here(Host("here is", "0.31.2", "NVIDIA A10"), model="n"),
     ["model m, f has n", "vLLM 0.32.0, here is 0.31.2", "NVIDIA H200, here is NVIDIA A10"]),
    ({}, here(model="$M"), ["model m, f has $M, which is decided elsewhere"]),
    ({}, Deployment(arguments={}, source="f"), ["model m, f names none"]),
    ({}, Deployment(arguments={}, source="f", is_new=True), []),
    ({}, here(Host("f has", gpu="NVIDIA-H100")), ["NVIDIA H200, f has NVIDIA-H100"]),
    ({}, here(Host("f has", gpu="NVIDIA-H200-SHARED")), []),
    ({}, here(kv_cache_dtype="fp8"), ["kv_cache_dtype auto, f has fp8"]),
    ({}, here(quantization="awq"), ["quantization none, f has awq"]),
    ({"engine": ENGINE | {"tensor_parallel_size": 2}}, here(), ["tensor_parallel_size 2, f has 1"]),
    ({"engine": ENGINE | {"revision": "a"}}, here(revision="b"), ["revision a, f has b"]),
    ({"engine": ENGINE | {"tokenizer": "evil/t"}}, here(), ["tokenizer evil/t, f has none"]),
    ({"engine": ENGINE | {"load_format": "dummy"}}, here(), ["load_format dummy, f has auto"]),
    ({"device": {}, "versions": {}}, here(H200),
     ["no device and no vLLM: the profile does not say which"]),
    ({"engine_": "sim", "versions": {"vllm": "0.1"}, "device": {"name": "simulated:x"}},
     here(H200), []),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "at", "words"), FOUND)
def test_what_was_measured_elsewhere_is_named(
    facts: dict[str, object], at: Deployment, words: list[str]
) -> None:
    chosen = profile(**(MEASURED | facts))  # type: ignore[arg-type]
    result = fit.mismatches(chosen, at)
    assert [each.words for each in result] == words
    assert (fit.refusal(chosen, result) is not None) is bool(words)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.32.0-cu129-ubuntu2404", "0.32.0"),
        ("vllm/vllm-openai:v0.11.0-rc.1", "0.11.0rc1"),
        ("vllm/vllm-openai:v0.11.1rc2.dev20", "0.11.1rc2.dev20"),
        ("host:5000/mirror/vllm-openai:v0.32.0@sha256:0123", "0.32.0"),
        ("public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.32.0", "0.32.0"),
        ("rocm/vllm:rocm7.0.0_vllm_0.11.2_20251210", "0.11.2"),
        ("/images/vllm-openai_v0.32.0.sif", "0.32.0"),
        ("lmcache/vllm-openai:v0.3.9", None),
        ("vllm/vllm-openai:v0.32.0.1", None),
        ("nvcr.io/nvidia/vllm:25.09-py3", None),
        ("acme/llm:v0.32.0", None),
    ],
)
def test_the_tag_of_an_image_tells_the_version_or_nothing_does(
    image: str, version: str | None
) -> None:
    assert vllm_version(image) == version
