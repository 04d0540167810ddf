"""What is not vLLM's, or serves another model, is refused and stays as it is."""

import contextlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import try_targets
from tests.support.deployments import (
    CHART,
    CONFIGMAP,
    EXAMPLES,
    FOLDER,
    QUADLET,
    RAY,
    VALUES,
    deployed,
)
from tests.support.places import ROOT
from tests.support.targets import NOTHING
from tuner.errors import ByHandError, NotVllmError, TargetError
from tuner.profile.profile import load, save
from tuner.rollout.beside import Folder
from tuner.rollout.targets.kinds.detect import detect
from tuner.rollout.targets.seam import Asked

LOOKALIKES = ROOT / "tests" / "lookalikes"


def tried(folder: Path) -> tuple[int, list[str]]:
    """Return the exit code of the script, and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = try_targets.main([str(folder)])
    return code, [*out.getvalue().splitlines(), *err.getvalue().splitlines()]


def written(folder: Path, texts: dict[str, str], expect: str) -> Path:
    """Write files with what is expected of each, and the profile."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    expected = {name: {"expect": expect} for name in texts}
    (folder / "expected.json").write_text(json.dumps(expected))
    save(deployed(), folder / "profile.yaml")
    return folder


def test_the_profile_of_the_lookalikes_is_the_one_of_the_examples() -> None:
    kept, wanted = load(LOOKALIKES / "profile.yaml"), deployed()
    assert kept.engine == wanted.engine
    assert (kept.provenance.versions, kept.provenance.device) == (
        wanted.provenance.versions,
        wanted.provenance.device,
    )


def test_what_is_not_vllms_or_serves_another_model_is_refused_and_untouched() -> None:
    files = [one for one in LOOKALIKES.glob("*/*") if one.is_file()]
    code, (*lines, last) = tried(LOOKALIKES)
    assert (code, last) == (0, f"{len(files)} files: 0 edited, {len(files)} refused, 0 wrong")
    strangers = [line for line in lines if "not-vllm/" in line]
    others = [line for line in lines if "other-model/" in line]
    assert len(strangers) >= 60
    assert [line for line in strangers if "  exit 3  " not in line] == []
    assert [line for line in others if ": model acme/translator-7b, " not in line] == []


def test_the_examples_are_edited_once_and_rolled_back(tmp_path: Path) -> None:
    texts = {Path(one.file).name: one.text for one in EXAMPLES if one.file != "kubernetes.yaml"}
    code, lines = tried(written(tmp_path, texts, "edit"))
    assert (code, lines[-1]) == (0, "9 files: 9 edited, 0 refused, 0 wrong")


def test_what_is_not_as_expected_is_marked(tmp_path: Path) -> None:
    code, (first, last) = tried(written(tmp_path, {"a.yaml": "groups: [{name: a}]\n"}, "edit"))
    assert (code, last) == (6, "1 files: 0 edited, 0 refused, 1 wrong")
    assert first.startswith("!! a.yaml")


@pytest.mark.parametrize("text", ["", "[]", '{"a": {}}', '{"a": {"expect": "x"}}'])
def test_an_expectation_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "expected.json").write_text(text)
    (tmp_path / "a").touch()
    code, lines = tried(tmp_path)
    assert (code, len(lines)) == (2, 2)
    assert lines[0].startswith(f"Error: {tmp_path}/expected.json: ")


# Every example, with every other image or every other program.

IMAGES = ("acme/vllm-ui", "a/vllmx", "b/my-sglang", "acme/tgi", "c/chat-avllm", "vllm/my-vllm2")
PROGRAMS = (
    "vllm bench",
    "vllm-serve",
    "serve vllm",
    "vllm chat",
    "echo vllm serve",
    "sglang serve",
)
_IMAGE = re.compile(r"vllm/vllm-openai|ghcr\.io/llm-d/llm-d-cuda")


def _with_program(text: str, program: str) -> str:
    return text.replace("vllm serve", program)


def _other_flag(text: str) -> str:
    return text.replace("max-num-seqs", "max-running-requests")


DISGUISED: dict[str, Callable[[str, str, str], str]] = {
    "compose.yaml": lambda text, image, _: _IMAGE.sub(image, text),
    "kubernetes.yaml": lambda text, image, _: _IMAGE.sub(image, text),
    "statefulset.yaml": lambda text, _, program: _with_program(text, program),
    "production-stack-values.yaml": lambda text, _, __: _IMAGE.sub("lmsysorg/sglang", text),
    "llm-d-values.yaml": lambda text, image, _: _IMAGE.sub(
        image, text.replace("vllmServe", "imageDefault")
    ),
    "vllm.service": lambda text, _, program: _with_program(text, program),
    "kserve.yaml": lambda text, _, __: text.replace("huggingface", "triton"),
    "llm-inference-service.yaml": lambda text, _, program: text.replace(
        "- name: main\n", f"- name: main\n      command: {program.split()}\n"
    ),
    "vllm.env": lambda text, _, __: _other_flag(text),
    "ray.yaml": lambda text, image, _: text.replace("ray.serve.llm", image.replace("/", ".")),
    "engine.yaml": lambda text, _, __: text.replace(
        "      engine_", "      llm_engine: SGLang\n      engine_"
    ),
    "configmap.yaml": lambda text, _, __: _other_flag(text),
    "v.container": lambda text, image, _: _IMAGE.sub(image, text),
    "program.container": lambda text, _, program: text.replace(
        "Exec=", f"Entrypoint={program.split()[0]}\nExec={' '.join(program.split()[1:])} "
    ),
    "chart.yaml": lambda text, _, program: text.replace("vllm, serve", ", ".join(program.split())),
    "values.yaml": lambda text, _, program: text.replace(
        "args: [", f"args: [{', '.join(program.split())}, run, "
    ),
}
NEWER = {
    "ray.yaml": RAY,
    "engine.yaml": RAY,
    "configmap.yaml": CONFIGMAP,
    "v.container": QUADLET,
    "program.container": QUADLET,
    "chart.yaml": CHART,
    "values.yaml": VALUES,
}
AT = {"values.yaml": "llm.models[0].args"}


@pytest.mark.parametrize("file", DISGUISED)
def test_an_example_with_another_image_or_program_is_refused(file: str) -> None:
    text = NEWER.get(file) or (FOLDER / file).read_text(encoding="utf-8")
    asked = Asked(file, at=AT.get(file), beside=NOTHING)
    assert detect(Path(file), text, asked).opened(text, asked).evidence
    others = {DISGUISED[file](text, *both) for both in zip(IMAGES, PROGRAMS, strict=True)}
    assert text not in others
    for other in others:
        with pytest.raises((NotVllmError, ByHandError)):
            detect(Path(file), other, asked).opened(other, asked)


@pytest.mark.parametrize("image", IMAGES)
def test_a_patch_of_a_base_with_another_image_is_refused(tmp_path: Path, image: str) -> None:
    for one in (FOLDER / "kustomize").iterdir():
        text = one.read_text(encoding="utf-8")
        (tmp_path / one.name).write_text(_IMAGE.sub(image, text))
    asked = Asked("patch.yaml", beside=Folder(tmp_path))
    text = (tmp_path / "patch.yaml").read_text()
    with pytest.raises(TargetError, match="is not seen to run vLLM"):
        detect(Path("patch.yaml"), text, asked).opened(text, asked)
