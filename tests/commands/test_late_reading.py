"""A sweep whose outputs tuner's own process reads too late."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import ROOT
from tuner.commands.sweep import one_trace
from tuner.commands.sweep.options import SweepOptions
from tuner.engines.server.start import ServerStarter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import ReadLateError
from tuner.runs import journal

TRACE = ROOT / "traces" / "translation.jsonl"


class Said:
    """See Watcher: keeps what it is warned of."""

    def __init__(self) -> None:
        self.warned: list[str] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)


def starters(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, is_late: Callable[[Any], bool]
) -> tuple[Any, Said]:
    """Return what started engines one after the other, where what ``is_late`` holds of is read
    too late."""
    found: list[Any] = []

    async def sweep(_requests: object, starter: object, *_: object, **__: object) -> str:
        found.append(starter)
        if is_late(starter):
            raise ReadLateError("outputs were read late", hint="--engine serve")
        return "swept"

    monkeypatch.setattr(one_trace, "sweep", sweep)
    monkeypatch.setattr(one_trace, "device_of", lambda *_: None)
    traffic, said = one_trace.traffic_of(SweepOptions(), TRACE), Said()
    starter = VllmStarter({"model": "m"}, sampling={"temperature": 0.5})
    book = journal.create(folder / "run", {"trace_digest": "sha256:1"})
    try:
        one_trace.measured(traffic, starter, book, said)  # type: ignore[arg-type]
    finally:
        book.close()
    return found, said


def in_our_process(starter: object) -> bool:
    return not isinstance(starter, ServerStarter)


def test_it_goes_on_through_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, said = starters(monkeypatch, tmp_path, is_late=in_our_process)
    assert [type(one) for one in found] == [VllmStarter, ServerStarter]
    assert found[1].sampling == {"temperature": 0.5}
    assert said.warned == ["from here on a process of its own sends and reads, through vllm serve"]


def test_where_that_reads_late_too_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ReadLateError):
        starters(monkeypatch, tmp_path, is_late=lambda _: True)
