"""A real server with all that tuner puts into one: recorded, traced, verified, watched, changed."""

import itertools
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.outside.table import GATE_FAILED, OK, ROOT, UNDECIDED, run
from tests.support.paced import STEP_S
from tests.support.processes import wait_until
from tests.support.vllm_server import (
    CAP,
    Planned,
    RealServer,
    hang_up,
    now_s,
    post,
    real_server,
    running,
    send,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

WORLD = f"step: {{a: {STEP_S}, b: 1.0e-4, c: 1.0e-5}}\nkv: {{blocks: 1000, block_size: 16}}\n"
"""About as fast as the server, whose steps are paced."""

RATE_RPS = 4
SHARED = list(range(100, 140))
"""A beginning of 40 tokens, two and a half blocks, that several prompts have."""

ANOTHER = [9] * 16 + SHARED[16:]
"""Begins with another block, and is the same from then on."""

CHAT = [{"role": "user", "content": "botu fodo diko dele boki " * 8}]
KINDS = (
    *("whole", "stream", "several", "chat", "chat_stream", "batch_1", "batch_2"),
    *("left_stream", "left_whole", "too_long"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with real_server(tmp_path_factory.mktemp("serve")) as item:
        yield item


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace, and a profile of a cap below the server's."""
    path = tmp_path_factory.mktemp("server")
    header = {"tuner_trace": 1, "time_unit": "ms", "model": "tuner:tiny"}
    rows = [
        {"timestamp": 1000 * row // RATE_RPS, "input_length": 20 + row, "output_length": 12}
        for row in range(120)
    ]
    (path / "prod.jsonl").write_text("\n".join(map(json.dumps, (header, *rows))) + "\n")
    (path / "world.yaml").write_text(WORLD)
    sim = ("--world", "world.yaml", "--trace", "prod.jsonl", "--ceiling", "4")
    assert run(path, "sweep", *sim, "--headroom", "1").code == OK
    return path


# Recorded


def ask_every_kind(url: str) -> None:
    """Send one request of each of KINDS, one after the other, and some that are no traffic."""
    assert post(url, prompt=SHARED)[0] == 200
    assert post(url, prompt=[*SHARED, 1, 2, 3], stream=True, max_tokens=9)[0] == 200
    assert post(url, prompt=ANOTHER, n=3, temperature=1.0, max_tokens=6)[0] == 200
    for stream in (False, True):
        assert post(url, "/v1/chat/completions", messages=CHAT, stream=stream)[0] == 200
    assert post(url, prompt=[SHARED, [7, 8]], max_tokens=4)[0] == 200
    for stream in (True, False):
        hang_up(url, prompt=SHARED, max_tokens=1900, stream=stream)
    assert post(url, prompt=SHARED, max_tokens=5000)[0] == 400
    assert post(url, prompt=SHARED, model="unknown")[0] == 404
    assert post(url, "/v1/nothing")[0] == 404


@pytest.fixture(scope="module")
def recorded(
    server: RealServer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, dict[str, Any]]]:
    """The recording of two requests a second, then of one of each kind; and the rows of these."""
    plan = [Planned(0.5 * row, [7] * (10 + row), 5, stream=row % 2 == 0) for row in range(8)]
    before = server.rows()
    send(server.url, plan)
    ask_every_kind(server.url)
    wait_until(lambda: server.rows() == before + len(plan) + len(KINDS))
    header, *lines = server.recorded().read_text().splitlines()
    path = tmp_path_factory.mktemp("recorded") / "recorded.jsonl"
    path.write_text("\n".join([header, *lines[before:]]) + "\n")
    return path, dict(zip(KINDS, map(json.loads, lines[before + len(plan) :]), strict=True))


def test_every_kind_of_request_leaves_its_row(recorded: tuple[Path, dict[str, Any]]) -> None:
    _, rows = recorded
    lengths = {
        name: (row.get("input_length"), row.get("output_length", 0)) for name, row in rows.items()
    }
    assert (lengths["whole"], lengths["stream"]) == ((40, 5), (43, 9))
    assert (lengths["batch_1"], lengths["batch_2"]) == ((40, 4), (2, 4))
    assert lengths["chat"] == lengths["chat_stream"]
    assert lengths["chat"][0] > 16
    assert (rows["several"]["n"], rows["several"]["output_lengths"]) == (3, [6, 6, 6])
    assert rows["too_long"]["status"] == "rejected"
    for name in ("left_stream", "left_whole"):
        assert (rows[name]["status"], rows[name]["max_tokens"]) == ("aborted", 1900)
        assert 0 < lengths[name][1] < 1900
    assert rows["whole"]["hash_ids"] == rows["stream"]["hash_ids"]
    assert len(rows["whole"]["hash_ids"]) == 2
    assert not {*rows["several"]["hash_ids"]} & {*rows["whole"]["hash_ids"]}


def test_the_recording_is_a_trace_without_a_word_of_its_traffic(
    recorded: tuple[Path, dict[str, Any]],
) -> None:
    path, _ = recorded
    assert "botu" not in path.read_text()
    shown = run(path.parent, "trace show", path, "--json")
    assert shown.code == OK, shown.stderr
    assert shown.json["requests"] == 8 + len(KINDS)
    planned = [json.loads(line) for line in path.read_text().splitlines()[1:9]]
    assert sorted(row["input_length"] for row in planned) == list(range(10, 18))
    gaps_ms = [b["timestamp"] - a["timestamp"] for a, b in itertools.pairwise(planned)]
    assert 400 < sum(gaps_ms) / len(gaps_ms) < 600


def test_spans_are_a_trace_and_an_abort_is_not_in_it(server: RealServer, tmp_path: Path) -> None:
    url, begin_s = server.url, now_s()
    assert post(url, prompt=[5] * 20, max_tokens=7)[0] == 200
    assert post(url, prompt=[6] * 21, max_tokens=8, n=3, temperature=0.9)[0] == 200
    hang_up(url, prompt=[7] * 22, max_tokens=1900)
    assert post(url, prompt=[9] * 23, max_tokens=6)[0] == 200
    wait_until(lambda: _spans_in(server.spans(since_s=begin_s)) == 5)  # n=3 has three
    spans = server.spans(since_s=begin_s)
    (tmp_path / "spans.jsonl").write_text("\n".join(map(json.dumps, spans)) + "\n")
    made = run(tmp_path, "trace import", "spans.jsonl", "-o", "trace.jsonl")
    assert made.code == OK, made.stderr
    header, *rows = map(json.loads, (tmp_path / "trace.jsonl").read_text().splitlines())
    assert header["source"] == "vllm-otlp"
    assert {"aborts", "errors"} <= set(header["missing"])
    result = [(row["input_length"], row["output_length"], row.get("n", 1)) for row in rows]
    assert result == [(20, 7, 1), (21, 8, 3), (23, 6, 1)]


def _spans_in(spans: list[dict[str, Any]]) -> int:
    return json.dumps(spans).count('"spanId"')


# Verified, and watched


def test_a_running_server_is_verified_by_what_its_clients_see(
    server: RealServer, folder: Path
) -> None:
    options = ("--url", server.url, "--trace", "prod.jsonl", "--step", "6s", "--force")
    done = run(folder, "verify", "profile.yaml", *options, "--tolerance", "10", "--json")
    assert done.code in {OK, GATE_FAILED}, done.stderr  # how fast this machine is, nobody promised
    assert done.json["kept"] is (done.code == OK)
    gates = {gate["name"] for gate in done.json["gates"]}
    assert {"attainment", "ttft_p95_ms", "tpot_p95_ms", "e2el_p95_ms"} <= gates


def test_a_running_server_is_watched(server: RealServer, folder: Path) -> None:
    plan = [Planned(row / RATE_RPS, [7 + row] * (20 + row), 12) for row in range(10 * RATE_RPS)]
    sending = threading.Thread(target=send, args=(server.url, plan))
    sending.start()
    often = ("--window", "1s", "--for", "9s")
    done = run(folder, "watch", "profile.yaml", "--url", server.url, *often, "--json")
    sending.join()
    assert done.code in {OK, UNDECIDED, GATE_FAILED}, done.stderr
    assert done.json["windows"] >= 6
    assert done.json["restarts"] == 0
    windows = {row["measure"]: row["windows"] for row in done.json["measures"]}
    assert windows["slowness"] >= 1, done.json


# Changed

CLIENTS = 10
"""More than the cap is ever: some always wait."""


@dataclass(slots=True)
class Load:
    """Clients that each send the next request when the one before is answered."""

    url: str
    stop: threading.Event = field(default_factory=threading.Event)
    answers: list[tuple[int, int, int]] = field(default_factory=list)
    """Status, tokens asked for, tokens got."""

    @contextmanager
    def sent(self) -> Iterator[None]:
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(self._client, number) for number in range(CLIENTS)]
            try:
                yield
            finally:
                self.stop.set()
        for client in clients:
            client.result()

    def _client(self, number: int) -> None:
        for turn in itertools.count():
            if self.stop.is_set():
                return
            tokens = 2 + 2 * ((number + turn) % 5)
            status, body = post(self.url, prompt=[100 + number, turn], max_tokens=tokens)
            got = json.loads(body)["usage"]["completion_tokens"] if status == 200 else 0
            self.answers.append((status, tokens, got))

    def most_running(self, cap: int) -> float:
        """Return how many run at most, once all that ran before is answered."""
        tick = threading.Event()
        before = len(self.answers)
        wait_until(lambda: len(self.answers) >= before + 2 * CLIENTS)  # first come, first served
        seen: list[float] = []
        while len(seen) < 8 or max(seen) < cap:
            seen.append(running(self.url))
            tick.wait(0.02)
        return max(seen)


def test_under_load_the_cap_is_changed_and_back_and_no_request_is_dropped(
    server: RealServer, folder: Path
) -> None:
    cap = yaml.safe_load((folder / "profile.yaml").read_text())["engine"]["max_num_seqs"]
    assert cap < CAP
    load, sockets = Load(server.url), ("--socket", server.socket)
    with load.sent():
        done = run(folder, "live", "profile.yaml", *sockets, "--force", "--json")
        assert done.code == OK, done.stderr
        assert load.most_running(cap) == cap
        (state,) = run(folder, "live", *sockets, "--json").json["servers"]
        assert state["max_num_seqs"] == cap
        assert run(folder, "live", "--reset", "--socket", server.socket).code == OK
        assert load.most_running(CAP) == CAP
    assert len(load.answers) > 3 * CLIENTS
    assert {status for status, _, _ in load.answers} == {200}
    assert [answer for answer in load.answers if answer[1] != answer[2]] == []
    log = (server.folder / "serve.log").read_text()
    assert re.search(rf"max_num_seqs {CAP} -> {cap}\b", log)


def test_more_than_the_server_was_built_for_is_refused(server: RealServer) -> None:
    profile = ROOT / "profiles" / "chat-small-cpu.yaml"
    assert yaml.safe_load(profile.read_text())["engine"]["max_num_seqs"] > CAP
    refused = run(server.folder, "live", profile, "--socket", server.socket, "--force")
    assert refused.code == GATE_FAILED
    assert "max_num_seqs" in refused.error
    with socket.socket(socket.AF_UNIX) as stranger:  # who does not ask what it was built for
        stranger.connect(str(server.socket))
        stranger.sendall(b"9 \n")
        answer = json.loads(stranger.makefile().readline())
    assert "max_num_seqs must be from 1 to" in answer["error"]
    (state,) = run(server.folder, "live", "--socket", server.socket, "--json").json["servers"]
    assert state["max_num_seqs"] == CAP
