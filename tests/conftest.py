"""Tests skip themselves where what they need is absent, so plain ``pytest`` is green everywhere."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as tuner.cli does, before numpy is imported

import importlib.util
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.in_process import environment_as_it_was, signals_as_they_were
from tuner.engines import devices

# The same examples every time, so that no change fails on a fault of another.
# ``pytest --hypothesis-profile=fuzz`` looks for new ones.
_PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink)
hypothesis.settings.register_profile(
    "tuner", deadline=None, max_examples=50, phases=_PHASES, derandomize=True
)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=2000, phases=_PHASES)
hypothesis.settings.load_profile("tuner")

# A shell that starts us in the background switches these off, for what we start as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

VLLM_TIMEOUT_S = 300
"""For a test on a real engine: the first one also waits for the shared engine to start."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="run what is marked gpu, on a CUDA device")
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where a mark is asked for, only files that name it are imported: all of them take each of the
    processes of a share some seconds."""
    wanted = re.match(r"(vllm|alone) and ", config.getoption("markexpr"))
    if wanted is None or not collection_path.match("test_*.py"):
        return None
    return None if f"mark.{wanted[1]}" in collection_path.read_text(encoding="utf-8") else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--gpu") and not devices.gpus():
        raise pytest.UsageError("--gpu: the driver shows no CUDA device here")
    no_gpu = pytest.mark.skip(reason="needs a CUDA device, and --gpu")
    no_vllm = pytest.mark.skip(reason="vllm is not installed")
    has_vllm = importlib.util.find_spec("vllm") is not None
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "alone" in marks and "vllm" not in marks:
            raise pytest.UsageError(f"{item.nodeid} is marked alone, and not vllm")
        gpu = item.get_closest_marker("gpu")
        if gpu is not None and gpu.kwargs.get("only") and not config.getoption("--gpu"):
            item.add_marker(no_gpu)
        if item.get_closest_marker("vllm"):
            if not has_vllm:
                item.add_marker(no_vllm)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(VLLM_TIMEOUT_S))
            # What vLLM and its kin warn about is not ours to fix.
            item.add_marker(pytest.mark.filterwarnings("default"))
    items.sort(key=_turn)


@pytest.fixture(autouse=True)
def _environment(request: pytest.FixtureRequest) -> Iterator[None]:
    """A cluster that a test starts keeps its token there, and a worker that no Hub is asked."""
    if request.node.get_closest_marker("vllm"):  # whose engine goes on into the next test
        yield
        return
    with environment_as_it_was():
        yield


WHOLE_COMMANDS = ("commands", "runs", "rollout")
"""Folders in which one file may take a core a minute: none of them may be the last."""


def _turn(item: pytest.Item) -> tuple[bool, bool]:
    """Real engines last: what is wrong without them shows early. What takes long first, so that
    all cores have something to do to the end."""
    room = item.path.relative_to(item.config.rootpath / "tests").parts[0]
    return item.get_closest_marker("vllm") is not None, room not in WHOLE_COMMANDS


@pytest.fixture(autouse=True, scope="session")
def _nobody_waits_for_the_disk() -> Iterator[None]:
    """What is written outlives its process without; no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which fails of what is not open, too
        yield


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    with signals_as_they_were():
        yield


@pytest.fixture(scope="module")
def by_few_draws() -> Iterator[None]:
    """For sweeps in this process that nobody holds to the last bit against one in another."""
    from tests.support.few_draws import few_draws  # noqa: PLC0415 - for some

    with few_draws():
        yield


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
