"""Logs and spans through ``tuner trace import`` and back: the same traffic, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands.trace.test_trace import Run
from tests.support.spans import export, request, span
from tests.support.traces import LOGS, needs_logs, write_lines
from tests.trace.formats import (
    test_envoy as test_formats_envoy,
)
from tests.trace.formats import (
    test_langfuse as test_formats_langfuse,
)
from tests.trace.formats import (
    test_litellm as test_formats_litellm,
)
from tests.trace.formats import test_nginx as nginx
from tuner.trace.trace import load

SECRETS = {"user": "alice", "end_user": "bob", "api_key": "sk-1234", "remote_addr": "192.168.1.38"}


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(monkeypatch, capsys)


def some(name: str) -> list[dict[str, Any]]:
    """Return a few rows of a format, with names of people and places in them."""
    if name == "vllm-otlp":
        return [export(*(span(start_s=i / 10, attributes=request(f"alice-{i}")) for i in range(9)))]
    if name == "litellm":
        return [
            test_formats_litellm.spend(startTime=f"2025-01-24 09:20:4{i}", session_id="alice")
            for i in range(3)
        ]
    if name == "langfuse":
        return [
            test_formats_langfuse.exported(id=str(i), input={"said": "secret"}) for i in range(3)
        ]
    if name == "envoy":
        return [test_formats_envoy.entry(duration=i) for i in range(3)]
    return [nginx.entry(request_time=f"{i}.5") for i in range(3)]


@pytest.mark.parametrize("name", ["vllm-otlp", "litellm", "langfuse", "envoy", "nginx"])
def test_an_import_is_the_same_traffic_without_names(tuner: Run, tmp_path: Path, name: str) -> None:
    lines = [line | SECRETS if name != "vllm-otlp" else line for line in some(name)]
    path = write_lines(tmp_path / "log", *lines)
    ended = tuner("trace", "import", path, "-o", tmp_path / "out", "--allow-text")
    assert ended.code == 0
    written = (tmp_path / "out").read_text()
    assert json.loads(written.partition("\n")[0])["source"] == name
    for secret in ("alice", "bob", "sk-1234", "192.168", "10.0.0.1", "secret", "chatcmpl"):
        assert secret not in written
    plain = [{key: value for key, value in line.items() if key != "input"} for line in lines]
    before = load(write_lines(tmp_path / "plain", *plain))
    assert load(tmp_path / "out").digest == before.digest
    assert load(tmp_path / "out").header.notes == before.header.notes


def test_text_is_refused_and_nothing_is_written(tuner: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log", test_formats_langfuse.exported(output="dear patient"))
    ended = tuner("trace", "import", path, "-o", tmp_path / "out")
    assert ended.code == 3
    assert "holds text (output)" in ended.err
    assert "patient" not in ended.err
    assert not (tmp_path / "out").exists()


@needs_logs
def test_the_real_spans_are_five_requests_and_aborts_are_said_to_be_missing(
    tuner: Run, tmp_path: Path
) -> None:
    path = LOGS / "vllm-0.32.0.otlp-json.jsonl"
    ended = tuner("trace", "import", path, "-o", tmp_path / "out")
    assert "rows: 7 read, 5 kept, dropped: 2 same_request" in ended.out
    assert "cannot show aborted requests" in ended.out
    header, *rows = map(json.loads, (tmp_path / "out").read_text().splitlines())
    assert "aborts" in header["missing"]
    assert [one.get("n", 1) for one in rows] == [1, 1, 3, 1, 1]
    assert load(tmp_path / "out").digest == load(path).digest
