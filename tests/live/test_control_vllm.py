"""A real server whose cap is changed while it is under load."""

import itertools
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from tests.support.profiles import profile
from tests.support.vllm_server import CAP, RealServer, gauges, post
from tuner import cli
from tuner.engines.models import shipped as models
from tuner.live import server as live_server
from tuner.profile.profile import save
from tuner.profile.served_models import model_mismatch
from tuner.rollout import difference

pytestmark = [pytest.mark.vllm, pytest.mark.serve, pytest.mark.timeout(180)]

CLIENTS = 10
"""More than the cap is ever: some always wait."""

Tuner = Callable[..., tuple[int, str, str]]


@pytest.fixture
def live(real_server: RealServer) -> RealServer:
    return real_server


@pytest.fixture
def tuner(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Tuner:
    """Run ``tuner apply --live`` where there are profiles for every cap, cap-1.yaml and so on."""
    from vllm import __version__ as here  # noqa: PLC0415 - heavy

    monkeypatch.chdir(tmp_path)
    for cap in range(1, CAP + 2):
        engine = {"model": "tuner:tiny", "max_num_seqs": cap, "max_num_batched_tokens": 2048}
        measured = profile(
            engine=engine, versions={"vllm": here}, device={"kind": "cpu", "name": "any"}
        )
        save(measured, Path(f"cap-{cap}.yaml"))

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tuner", "apply", "--live", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return exited.value.code, captured.out, captured.err

    return run


@dataclass(slots=True)
class Load:
    """Clients that each send the next request when the one before is answered."""

    url: str
    stop: threading.Event = field(default_factory=threading.Event)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(CLIENTS))
    clients: list[Future[None]] = field(default_factory=list)
    answers: list[tuple[int, int, int]] = field(default_factory=list)
    """Status, tokens asked for, tokens got."""

    def __enter__(self) -> Self:
        self.clients = [self.pool.submit(self._client, number) for number in range(CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for client in self.clients:
            client.result()
        self.pool.shutdown()

    def _client(self, number: int) -> None:
        for turn in itertools.count():
            if self.stop.is_set():
                return
            tokens = 2 + 2 * ((number + turn) % 5)
            status, body = post(self.url, prompt=[100 + number, turn], max_tokens=tokens)
            got = json.loads(body)["usage"]["completion_tokens"] if status == 200 else 0
            self.answers.append((status, tokens, got))


def watched(load: Load, cap: int) -> float:
    """Return how many run at most, once all that ran before is answered and every slot got used."""
    tick = threading.Event()
    before = len(load.answers)
    while len(load.answers) < before + 2 * CLIENTS:  # first come, first served: none is left
        tick.wait(0.02)
    seen: list[float] = []
    while len(seen) < 8 or max(seen) < cap:
        seen.append(gauges(load.url)[0])
        tick.wait(0.02)
    return max(seen)


def preemptions(url: str) -> float:
    from urllib.request import urlopen  # noqa: PLC0415 - here alone

    with urlopen(f"{url}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(one.split()[-1]) for one in lines if one.startswith("vllm:num_preemptions_t"))


def test_under_load_the_cap_is_obeyed_and_no_request_is_dropped(
    live: RealServer, tuner: Tuner
) -> None:
    caps = [3, 8, 1, 6, 8]
    with Load(live.url) as load:
        for cap in caps:
            code, out, err = tuner(f"cap-{cap}.yaml", "--socket", live.socket, "--url", live.url)
            assert (code, err) == (0, ""), err
            assert f"-> {cap}; " in out or cap == CAP
            assert watched(load, cap) == cap
        code, _, err = tuner(f"cap-{CAP + 1}.yaml", "--socket", live.socket)
        assert code == 6
        assert f"max_num_seqs {CAP + 1} is more than the {CAP} that the server" in err
    assert len(load.answers) > 3 * CLIENTS
    assert {status for status, _, _ in load.answers} == {200}
    assert [one for one in load.answers if one[1] != one[2]] == []
    assert preemptions(live.url) == 0


def test_an_idle_server_is_changed_at_once_and_back(live: RealServer, tuner: Tuner) -> None:
    assert gauges(live.url) == (0, 0)
    assert tuner("cap-2.yaml", "--socket", live.socket)[0] == 0
    _, shown, _ = tuner("--socket", live.socket, "--json")
    (state,) = json.loads(shown)["servers"]
    assert state["limits"]["max_num_seqs"] == 2
    assert state["about"]["device"]["kind"] == "cpu"
    with Load(live.url) as load:
        assert watched(load, 2) == 2
    assert tuner("--rollback", live.socket)[0] == 0
    with Load(live.url) as load:
        assert watched(load, CAP) == CAP


def test_another_kv_cache_than_the_server_has_is_refused(live: RealServer, tuner: Tuner) -> None:
    engine = {"model": "tuner:tiny", "max_num_seqs": 2, "max_num_batched_tokens": 2048}
    save(profile(engine={**engine, "kv_cache_dtype": "fp8"}), Path("other.yaml"))
    code, _, err = tuner("other.yaml", "--socket", live.socket)
    assert code == 6
    assert f"kv_cache_dtype fp8, {live.socket} has auto" in err
    assert gauges(live.url) == (0, 0)


def test_the_servers_log_says_what_was_changed(live: RealServer) -> None:
    log = (live.socket.parent / "serve.log").read_text()
    assert "tuner: max_num_seqs 8 -> 3" in log
    assert "live control is off" not in log


def test_the_server_tells_its_model_and_not_its_cap(live: RealServer) -> None:
    here = live_server.ask(live.url)
    (served,) = here.served
    assert (served.name, served.root) == ("tiny", models.model_path("tuner:tiny"))
    engine = {"max_num_seqs": 2, "max_num_batched_tokens": 2048, "block_size": 16}
    measured = profile(engine={**engine, "model": "tuner:tiny"})
    untold = difference.untold(measured, here.arguments, served=here.served)
    assert untold == ["max_num_seqs", "max_num_batched_tokens"]
    assert model_mismatch(measured, here.served) is None
    assert model_mismatch(profile(engine={**engine, "model": "acme/other"}), here.served)
