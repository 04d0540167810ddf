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
