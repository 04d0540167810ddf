"""Commands whose outputs tuner's own process reads too late."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.commands.sweep.test_sweep import WORLD
from tests.support.builders import facts
from tests.support.in_process import tuner
from tests.support.traces import beginning
from tuner.engines.seam import EngineFacts, Starter
from tuner.engines.server.start import Reading, ServerStarter
from tuner.engines.vllm.start import VllmStarter
from tuner.errors import ReadLateError
from tuner.replay.records import Replay
from tuner.runs import journal
from tuner.runs.evidence import Evidence

pytestmark = [
    pytest.mark.timeout(120),  # sweeps and a refinement of a simulated machine
    pytest.mark.usefixtures("by_few_draws"),
]

APART = "from here on a process of its own sends and reads, through vllm serve"
SIM = ("--engine", "sim", "--world", "world.yaml", "--step", "8s", "--trace", "prod.jsonl")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("late")
    (folder / "world.yaml").write_text(WORLD)
    beginning(folder / "prod.jsonl", 300)
    beginning(folder / "other.jsonl", 200)
    assert tuner(folder, "sweep", *SIM, "--fast").returncode == 0
    return folder


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let replays be late until their run reads apart, those too after the first few that may be
    in time. Nothing of vLLM is here: that the other engine is behind a server is tested below."""
    in_time = [0.0]
    is_apart = [False]

    def check(_: Replay, __: EngineFacts) -> None:
        in_time[0] -= 1
        if in_time[0] < 0 and not is_apart[0]:
            raise ReadLateError("outputs were read late", hint="--engine serve")

    def starts(self: Reading, starter: Starter) -> Starter:
        is_apart[0] = self.is_apart
        return starter

    monkeypatch.setattr("tuner.replay.attempts.check_reading", check)
    monkeypatch.setattr(Reading, "starts", starts)
    return lambda replays: in_time.__setitem__(0, replays)


COMMANDS = {
    "sweep": ("sweep", *SIM, "--ceiling", "4", "-o", "again.yaml"),
    "several traces": ("sweep", *SIM, "--trace", "other.jsonl", "--ceiling", "4", "-o", "several"),
    "refine": ("refine", "profile.yaml", *SIM, "--search", "max_num_seqs=2,4"),
    "verify": ("verify", "profile.yaml", *SIM, "--tolerance", "10"),
    "compare": (
        "compare", *SIM, "--approaches", "untuned,tuned", "--max-num-seqs", "8", "--repeats", "2",
    ),
}  # fmt: skip


IN_TIME = [("sweep", 2), ("several traces", 2), ("refine", 2), ("verify", 0), ("compare", 0)]


@pytest.mark.parametrize(("command", "replays"), IN_TIME)
def test_it_goes_on_through_a_process_of_its_own(
    swept: Path, command: str, replays: int, late: Callable[[float], None]
) -> None:
    """What is late is made again once; then the rest is read apart, and nothing has failed."""
    late(replays)
    done = tuner(swept, *COMMANDS[command])
    assert done.returncode in {0, 1}, done.stderr
    assert done.stderr.count(APART) == 1, done.stderr
    assert "failed" not in done.stderr


def test_the_other_engine_is_behind_a_server_and_drawn_from_in_the_same_way() -> None:
    reading, alone = Reading(), VllmStarter({"model": "m"}, sampling={"temperature": 0.5})
    assert reading.starts(alone) is alone
    reading.is_apart = True
    served = reading.starts(alone)
    assert isinstance(served, ServerStarter)
    assert (served.arguments, served.sampling) == (alone.arguments, alone.sampling)
    assert reading.starts(served) is served


def test_where_that_reads_late_too_it_is_refused() -> None:
    said: list[str] = []
    times: list[None] = []

    async def work() -> None:
        times.append(None)
        raise ReadLateError("outputs were read late", hint="--engine serve")

    with pytest.raises(ReadLateError):
        asyncio.run(Reading().in_time(work, warn=said.append))
    assert (len(times), said) == (2, [APART])


def test_that_a_run_saw_engines_of_two_kinds_is_said_of_what_it_found(tmp_path: Path) -> None:
    with closing(journal.create(tmp_path / "run", {})) as book:
        for engine, purpose in [("vllm", "ladder"), ("serve", "confirm"), ("serve", "ladder")]:
            before = Evidence(book).read_apart()
            assert before == []
            book.append(
                "start", purpose=purpose, max_num_seqs=8, facts=asdict(facts(engine=engine))
            )
        (said,) = Evidence(book).read_apart()
    assert "too late in tuner's own process" in said
