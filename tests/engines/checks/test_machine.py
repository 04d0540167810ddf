"""What of a machine makes its numbers worth nothing; GPUs on a fake driver."""

from dataclasses import replace

import pynvml
import pytest

from tests.support.fake_nvml import GIB, Card, install
from tuner.engines import gpus
from tuner.engines.checks.machine import Machine, checks

CPU = Machine(
    accelerator="cpu",
    versions={"vllm": "0.32.0+cpu"},
    driver={},
    gpus=(),
    processes={7},
    shared_bytes=8 * GIB,
    xids=None,
)


def machine(monkeypatch: pytest.MonkeyPatch, *cards: Card) -> Machine:
    install(monkeypatch, *cards)
    return replace(
        CPU,
        accelerator="cuda",
        versions={"vllm": "0.32.0"},
        driver=gpus.driver(),
        gpus=gpus.visible(),
        lost=gpus.lost(),
        xids=(),
    )


def statuses(one: Machine) -> dict[str, str]:
    """Return the answers that are no PASS."""
    return {check.name: check.status for check in checks(one) if check.status != "PASS"}


def test_a_machine_without_a_gpu_is_asked_what_it_has() -> None:
    found = checks(CPU)
    assert [check.name for check in found if check.status == "PASS"] == ["vllm", "/dev/shm"]
    assert {check.said for check in found if check.status == "SKIP"} == {"no GPU here"}


def test_a_gpu_that_idles_and_is_ours_alone_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert statuses(machine(monkeypatch, Card("GPU-aaaaaaaa-1"))) == {}


@pytest.mark.parametrize(
    ("card", "failed"),
    [
        (Card("GPU-a", processes={900}), "foreign processes"),
        (Card("GPU-a", memory_used=40 * GIB), "memory"),
        (Card("GPU-a", uncorrected_errors=1), "ecc"),
        (Card("GPU-a", reasons=pynvml.nvmlClocksThrottleReasonHwSlowdown), "throttling"),
    ],
)
def test_what_is_wrong_with_a_gpu_fails_with_its_cure(
    card: Card, failed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = machine(monkeypatch, card)
    assert statuses(seen) == {failed: "FAIL"}
    assert all(check.cure for check in checks(seen) if check.status == "FAIL")


def test_a_gpu_that_has_fallen_off_the_bus_is_named_by_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = machine(monkeypatch, Card("GPU-a"), Card("GPU-b", is_lost=True))
    (failed,) = (check for check in checks(seen) if check.status == "FAIL")
    assert (failed.name, failed.said.partition(":")[0]) == (
        "device",
        "GPU 1 has fallen off the bus",
    )


def test_what_an_instance_does_not_tell_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    assert statuses(machine(monkeypatch, Card("GPU-a", reasons=None))) == {"throttling": "SKIP"}


def test_a_gpu_is_named_in_full_for_vllm_finds_no_beginnings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = machine(monkeypatch, Card("GPU-aaaaaaaa-1"))
    named = [one for one in checks(seen) if "GPU-" in one.said]
    assert {one.name for one in named} == {
        "device", "mig", "ecc", "throttling", "foreign processes", "memory",
    }  # fmt: skip
    assert [one.said for one in named if "GPU-aaaaaaaa-1" not in one.said] == []
    assert statuses(replace(seen, visible="GPU-aaaaaaaa-1")) == {}
    assert statuses(replace(seen, visible="0")) == {}
    (failed,) = (
        one for one in checks(replace(seen, visible="GPU-aaaaaaaa")) if one.status == "FAIL"
    )
    assert (failed.name, failed.cure) == (
        "CUDA_VISIBLE_DEVICES",
        "Write all of it: GPU-aaaaaaaa-1.",
    )


@pytest.mark.parametrize(
    ("torch", "cuda", "status"),
    [
        ("2.13.0", "13.0", "PASS"),
        ("2.13.0", "12.9", "FAIL"),
        ("2.13.0+cu128", "12.2", "PASS"),  # the minor versions of a major one go together
        ("2.13.0+cu130", "12.9", "FAIL"),
    ],
)
def test_the_driver_is_held_against_what_torch_was_built_for(
    torch: str, cuda: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = replace(
        machine(monkeypatch, Card("GPU-a")),
        versions={"vllm": "0.32.0", "torch": torch},
        driver={"driver": "1", "cuda": cuda},
    )
    assert [one.status for one in checks(seen) if one.name == "driver"] == [status]


def test_what_is_wrong_with_the_driver_or_the_system_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    well = machine(monkeypatch, Card("GPU-a"))
    assert statuses(replace(well, xids=("NVRM: Xid (PCI:0000:01:00): 79",))) == {"xid": "FAIL"}
    assert statuses(replace(well, xids=None)) == {"xid": "SKIP"}
    assert statuses(replace(well, driver={"driver": "535.1", "cuda": "12.2"})) == {"driver": "FAIL"}
    assert statuses(replace(well, shared_bytes=64 << 20)) == {"/dev/shm": "FAIL"}
    assert statuses(replace(well, accelerator="cpu")) == {"device": "FAIL"}
    assert statuses(replace(well, gpus=())) == {"device": "FAIL"}


@pytest.mark.parametrize(
    ("codes", "status", "said"),
    [((79, 13), "FAIL", "79"), ((13, 31), "PASS", "31"), ((), "PASS", "none in the")],
)
def test_errors_of_programs_are_said_and_those_of_the_hardware_fail(
    codes: tuple[int, ...], status: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """13 and 31 are of a program that went wrong, which has ended."""
    told = tuple(f"NVRM: Xid (PCI:0000:01:00): {code}, pid=7, name=python" for code in codes)
    seen = replace(machine(monkeypatch, Card("GPU-a")), xids=told)
    (found,) = (one for one in checks(seen) if one.name == "xid")
    assert found.status == status
    assert said in found.said


def test_of_other_makers_devices_it_says_that_they_are_not_read() -> None:
    said = {check.said for check in checks(replace(CPU, accelerator="rocm"))}
    assert "tuner does not read rocm devices" in said


@pytest.mark.parametrize(
    ("version", "said"),
    [("0.33.0", "tried in full"), ("0.31.0", "tried in part"), ("0.34.0rc1", "not tried")],
)
def test_how_far_this_vllm_was_tried_is_said(version: str, said: str) -> None:
    (first, *_) = checks(replace(CPU, versions={"vllm": version}))
    assert (first.status, first.said) == ("PASS", f"vllm {version}, for cpu, {said}")


def test_nothing_is_measured_without_vllm() -> None:
    assert statuses(replace(CPU, versions={}))["vllm"] == "FAIL"
