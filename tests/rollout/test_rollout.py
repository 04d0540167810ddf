"""What a profile means for a deployment, and what speaks against it."""

import re

import pytest

from tests.support.profiles import ENGINE, profile, step
from tuner.engines.models import shipped as models
from tuner.engines.seam import ArgumentValue
from tuner.errors import GateError, InputError, ProfileError, TargetError
from tuner.rollout import rollout
from tuner.rollout.rollout import Deployment, LocalMachine
from tuner.rollout.targets.seam import Platform, Stated

NOTHING = LocalMachine(vllm=None, gpu=None)
MEASURED = profile(versions={"vllm": "0.32.0"}, device={"kind": "gpu", "name": "NVIDIA H200"})


def stated(**arguments: ArgumentValue) -> dict[str, Stated]:
    return {name: Stated(value, line) for line, (name, value) in enumerate(arguments.items(), 1)}


def deployment(here: LocalMachine | None, **arguments: ArgumentValue) -> Deployment:
    """Return a file that names the profile's model last."""
    return Deployment(
        stated(**{**arguments, "model": arguments.get("model", "m")}), "serve.yaml", machine=here
    )


def mismatches(here: LocalMachine, **arguments: ArgumentValue) -> list[str]:
    found = rollout.mismatches(MEASURED, deployment(here, **arguments))
    return [one.words for one in found]


def test_every_engine_argument_of_the_profile_is_deployed() -> None:
    assert rollout.settings(profile(), live_knob=False) == ENGINE


def test_the_shipped_model_is_deployed_by_its_path() -> None:
    shipped = profile(engine={**ENGINE, "model": "tuner:tiny"})
    assert rollout.settings(shipped, live_knob=False)["model"] == models.model_path("tuner:tiny")


def test_a_model_that_does_not_ship_is_named() -> None:
    with pytest.raises(InputError, match="tuner:huge does not ship"):
        rollout.settings(profile(engine={**ENGINE, "model": "tuner:huge"}), live_knob=False)


def test_the_live_knob_deploys_what_the_ladder_measured() -> None:
    arguments = rollout.settings(profile(), live_knob=True)
    assert (arguments["max_num_seqs"], arguments["max_num_active_seqs"]) == (32, 16)


def test_a_step_that_only_the_twin_saw_was_not_built() -> None:
    twin = step(64).model_copy(update={"source": "twin"})
    arguments = rollout.settings(profile(curve=(step(16), twin)), live_knob=True)
    assert (arguments["max_num_seqs"], arguments["max_num_active_seqs"]) == (16, 16)


def test_the_live_knob_needs_tokens_for_every_sequence() -> None:
    tight = profile(engine={**ENGINE, "max_num_batched_tokens": 16})
    with pytest.raises(ProfileError, match="is 16, less than the 32 sequences"):
        rollout.settings(tight, live_knob=True)


@pytest.mark.parametrize("name", ["max_num_active_seqs", "max_num_scheduled_tokens"])
def test_a_limit_in_the_file_that_would_undo_the_choice_is_refused(name: str) -> None:
    with pytest.raises(TargetError, match=rf"^serve\.yaml:1: {name} is 8, but the profile"):
        rollout.check_together(stated(**{name: 8}), ENGINE, source="serve.yaml")  # type: ignore[arg-type]


def test_a_limit_that_changes_nothing_may_stay() -> None:
    rollout.check_together(
        stated(max_num_active_seqs=16, max_num_scheduled_tokens=8192),
        ENGINE,  # type: ignore[arg-type]
        source="serve.yaml",
    )


def test_a_limit_that_the_profile_sets_itself_may_be_anything() -> None:
    arguments = rollout.settings(profile(), live_knob=True)
    rollout.check_together(stated(max_num_active_seqs=8), arguments, source="serve.yaml")


@pytest.mark.parametrize("name", ["kv_cache_memory_bytes", "num_gpu_blocks_override"])
def test_what_makes_vllm_ignore_the_memory_share_is_refused(name: str) -> None:
    with pytest.raises(TargetError, match=rf"^serve\.yaml:1: {name} is set, and vLLM would then"):
        rollout.check_together(stated(**{name: 1}), ENGINE, source="serve.yaml")  # type: ignore[arg-type]


def test_where_nothing_is_known_nothing_differs() -> None:
    assert mismatches(NOTHING) == []


def test_the_same_machine_does_not_differ() -> None:
    assert mismatches(LocalMachine(vllm="0.32.0", gpu="NVIDIA H200"), model="m") == []


def test_a_build_of_the_same_release_does_not_differ() -> None:
    assert mismatches(LocalMachine(vllm="0.32.0+cu130", gpu="NVIDIA H200")) == []


def test_a_gpu_is_not_a_cpu() -> None:
    assert mismatches(LocalMachine(vllm="0.32.0", gpu=None)) == ["NVIDIA H200, here is a CPU"]


def test_one_cpu_is_like_another() -> None:
    slow = profile(device={"kind": "cpu", "name": "slow"})
    here = LocalMachine(vllm="0.32.0", gpu=None)
    assert rollout.mismatches(slow, deployment(here)) == []


def test_another_model_version_and_gpu_are_each_named() -> None:
    here = deployment(LocalMachine(vllm="0.31.2", gpu="NVIDIA A10"), model="n")
    found = rollout.mismatches(MEASURED, here)
    assert [one.words for one in found] == [
        "model m, serve.yaml:1 has n",
        "vLLM 0.32.0, here is 0.31.2",
        "NVIDIA H200, here is NVIDIA A10",
    ]
    refused = rollout.refusal(MEASURED, found)
    assert isinstance(refused, GateError)
    assert re.search(r"elsewhere: model m, .*; vLLM 0\.32\.0, .*; NVIDIA", str(refused))


@pytest.mark.parametrize(
    ("engine", "known"),
    [
        ({}, "they schedule alike, their kernels were not compared"),
        (
            {"enable_lora": True},
            "in 0.33, with enable_lora, the adapters of all running requests count for max_loras",
        ),
    ],
)
def test_of_a_newer_vllm_it_says_what_was_and_what_was_not_found_to_differ(
    engine: dict[str, object], known: str
) -> None:
    measured = profile(versions={"vllm": "0.32.0+cpu"}, engine={**ENGINE, **engine})
    (found,) = rollout.mismatches(measured, deployment(LocalMachine(vllm="0.33.0", gpu=None)))
    assert found.words == f"vLLM 0.32.0+cpu, here is 0.33.0 ({known})"


def test_nothing_different_is_not_refused() -> None:
    assert rollout.refusal(MEASURED, []) is None


def test_another_driver_leaves_more_standing_than_another_gpu() -> None:
    measured = profile(device={"kind": "gpu", "name": "NVIDIA H200", "driver": "580.1"})
    same = LocalMachine(vllm="0.32.0", gpu="NVIDIA H200", driver="580.1")
    assert rollout.mismatches(measured, deployment(same)) == []
    other = LocalMachine(vllm="0.32.0", gpu="NVIDIA H200", driver="590.2")
    found = rollout.mismatches(measured, deployment(other))
    assert [one.words for one in found] == ["driver 580.1, here is 590.2"]
    refused = rollout.refusal(measured, found)
    assert refused is not None
    assert refused.hint.startswith(
        "Still holds: what the traffic asks for (14 requests at a time at most), max_num_seqs 16, "
        "the size of the KV cache."
    )
    another_gpu = LocalMachine(vllm="0.32.0", gpu="NVIDIA A10", driver="590.2")
    found = rollout.mismatches(measured, deployment(another_gpu))
    refused = rollout.refusal(measured, found)
    assert refused is not None
    assert refused.hint.startswith(
        "Still holds: what the traffic asks for (14 requests at a time at most). Sweep"
    )


@pytest.mark.parametrize(
    ("engine", "file", "words"),
    [
        ({}, {"kv_cache_dtype": "fp8"}, "kv_cache_dtype auto, serve.yaml:1 has fp8"),
        ({"revision": "a"}, {"revision": "b"}, "revision a, serve.yaml:1 has b"),
        ({}, {"tensor_parallel_size": 2}, "tensor_parallel_size 1, serve.yaml:1 has 2"),
        ({"tensor_parallel_size": 2}, {}, "tensor_parallel_size 2, serve.yaml has 1"),
        ({}, {"quantization": "awq"}, "quantization None, serve.yaml:1 has awq"),
    ],
)
def test_what_a_measurement_stands_and_falls_with_is_compared(
    engine: dict[str, object], file: dict[str, ArgumentValue], words: str
) -> None:
    measured = profile(engine={**ENGINE, **engine})
    found = rollout.mismatches(measured, deployment(None, **file))
    assert [one.words for one in found] == [words]
    assert rollout.of_the_file(found) == {words.partition(" ")[0]}


def test_a_new_file_differs_in_nothing() -> None:
    measured = profile(engine={**ENGINE, "tensor_parallel_size": 2})
    assert rollout.mismatches(measured, Deployment({}, "serve.yaml", is_new=True)) == []


def test_the_image_and_the_node_say_where_a_container_runs() -> None:
    here = Deployment(
        stated(model="m"), "d.yaml", Platform(vllm=Stated("0.9.1", 3), gpu=Stated("NVIDIA-H100", 9))
    )
    assert [one.words for one in rollout.mismatches(MEASURED, here)] == [
        "vLLM 0.32.0, d.yaml:3 has 0.9.1",
        "NVIDIA H200, d.yaml:9 has NVIDIA-H100",
    ]
    same = Platform(vllm=Stated("0.32.0", 3), gpu=Stated("NVIDIA-H200", 9))
    assert rollout.mismatches(MEASURED, Deployment(stated(model="m"), "d.yaml", same)) == []


def test_the_shipped_model_is_the_same_by_name_and_by_path() -> None:
    shipped = profile(engine={**ENGINE, "model": "tuner:tiny"})
    for name in ("tuner:tiny", models.model_path("tuner:tiny")):
        here = Deployment(stated(model=name), "serve.yaml")
        assert rollout.model_mismatch(shipped, here) is None


def test_a_simulated_machine_is_nobodys() -> None:
    simulated = profile(engine_="sim", versions={"vllm": "0.1"}, device={"name": "simulated:x"})
    here = LocalMachine(vllm="0.32.0", gpu="NVIDIA H200")
    assert rollout.mismatches(simulated, deployment(here)) == []


@pytest.mark.attack
def test_a_gpu_without_a_name_is_another_one() -> None:
    unnamed = profile(versions={"vllm": "0.32.0"}, device={"kind": "gpu"})
    here = deployment(LocalMachine(vllm="0.32.0", gpu="NVIDIA H200"))
    found = [one.words for one in rollout.mismatches(unnamed, here)]
    assert found == ["an unnamed GPU, here is NVIDIA H200"]


def test_what_a_shipped_model_needs_is_written_where_nothing_is_said() -> None:
    shipped = profile(engine={**ENGINE, "model": "tuner:tiny", "load_format": "dummy"})
    assert rollout.mismatches(shipped, deployment(None, model="tuner:tiny")) == []
