"""The examples of docs/apply.md: typed as they stand there, they print what stands there."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.deployments import EXAMPLES, FOLDER, deployed
from tests.support.places import ROOT
from tuner import cli
from tuner.profile.profile import save

PAGE = ROOT / "docs" / "apply.md"
BLOCK = re.compile(r"^```console\n\$ (tuner apply .*)\n((?:.*\n)*?)```$", flags=re.MULTILINE)


def typed(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    words = shlex.split(command)
    example = next((one for one in EXAMPLES if one.file == words[3]), None)
    save(deployed(example), Path("profile.yaml"))
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as exited:
        cli.main()
    captured = capsys.readouterr()
    assert exited.value.code == 0, captured.err
    return captured.out


def test_the_examples_of_the_page_print_what_it_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    update_golden: bool,
) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "vllm.service.d").mkdir()
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    shown = BLOCK.sub(
        lambda block: f"```console\n$ {block[1]}\n{typed(block[1], monkeypatch, capsys)}```", text
    )
    if update_golden:
        PAGE.write_text(shown, encoding="utf-8")
    assert shown == text


def test_every_example_is_on_the_page() -> None:
    commands = " ".join(command for command, _ in BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    assert [one.file for one in EXAMPLES if one.file not in commands] == []
