"""`tuner verify --url` as its users meet it: a server that runs, and what is in its way."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.support.completions import DONE, HEAD, TOKEN, Exchange, completions, usage
from tests.support.in_process import tuner
from tests.support.profiles import resealed
from tests.support.traces import write_lines
from tuner.engines import server as engines_server
from tuner.engines.paged import WARM_UPS
from tuner.profile.profile import evidence_of, load, save
from tuner.replay import soundness
from tuner.traffic import window, workload

WORLD = "step: {a: 0.020, b: 0.0006, n0: 16, h: 0.0025, c: 1.0e-5}\n"
MODEL = "acme/tiny"
TOKEN_S = 0.002
"""A tenth of what the profile's machine takes."""

STEP_S = 1.0
RATE_RPS = 20

Answer = Callable[[Exchange], Awaitable[None]]


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine here is slow: a shorter replay than users may ask for tells enough of it."""
    monkeypatch.setattr(workload, "MIN_STEP_S", STEP_S)
    monkeypatch.setattr(window, "MIN_WINDOW_S", STEP_S / 2)
    monkeypatch.setattr(engines_server, "_COUNTED_S", 0.2)
    monkeypatch.setattr(soundness, "LEAST_LAG_S", 60.0)  # how busy this machine is is no matter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a profile of a simulated machine and its trace: 20 requests a second,
    10 tokens each."""
    path = tmp_path_factory.mktemp("verify")
    times_ms = range(0, 6000, 1000 // RATE_RPS)
    rows = [{"timestamp": ms, "input_length": 20, "output_length": 10} for ms in times_ms]
    header = {"tuner_trace": 1, "time_unit": "ms", "model": MODEL}
    write_lines(path / "prod.jsonl", header, *rows)
    (path / "world.yaml").write_text(WORLD)
    tuning = ("--world", "world.yaml", "--trace", "prod.jsonl", "--ceiling", "8")
    done = tuner(path, "sweep", *tuning)
    assert (path / "profile.yaml").exists(), done.stderr
    return path


class Pages(dict[str, bytes]):
    """A vLLM server's own pages, whose counter counts what it has answered."""

    def __init__(self, *, model: str = MODEL, version: str = "0.32", running: int = 0) -> None:
        super().__init__()
        self.running, self.served = running, 0
        self.statuses: dict[str, bytes] = {}
        self["/version"] = json.dumps({"version": version}).encode()
        self["/v1/models"] = json.dumps(
            {"data": [{"id": model, "root": model, "max_model_len": 1024}]}
        ).encode()
        self.count(0)

    def with_status(self, path: str, status: bytes) -> "Pages":
        """Return the pages of a server that answers so there."""
        self.statuses[path] = status
        return self

    def with_page(self, path: str, content: bytes) -> "Pages":
        self[path] = content
        return self

    def count(self, requests: int) -> None:
        self.served += requests
        self["/metrics"] = (
            "# TYPE vllm:num_requests_running gauge\n"
            f'vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} {self.running}\n'
            "# TYPE vllm:num_requests_waiting gauge\n"
            f'vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0\n'
            "# TYPE vllm:request_success_total counter\n"
            f'vllm:request_success_total{{engine="0",finished_reason="length"}} {self.served}\n'
        ).encode()


async def paced(exchange: Exchange, tokens: int) -> None:
    await exchange.send(HEAD)
    for _ in range(tokens):
        await exchange.event(TOKEN)
        await asyncio.sleep(TOKEN_S)
    await exchange.event(usage(tokens), DONE)
    await exchange.end()


async def refused(exchange: Exchange, status: bytes) -> None:
    await exchange.send(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status)


def verify(folder: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    words = ("verify", "profile.yaml", "--trace", "prod.jsonl", "--step", f"{STEP_S:g}s")
    return tuner(folder, *words, "--url", url, *options)


@contextmanager
def vllm(pages: Pages, exchanges: list[Exchange], answer: Answer | None = None) -> Iterator[str]:
    """Serve as vLLM does, or as ``answer``; keep what was asked."""

    async def keep(exchange: Exchange) -> None:
        exchanges.append(exchange)
        if answer is not None:
            await answer(exchange)
            return
        if "/metrics" in pages:
            pages.count(1)
        await paced(exchange, exchange.body["max_tokens"])

    with completions(keep, get=pages, statuses=pages.statuses) as url:
        yield url


def test_a_running_server_is_held_against_the_promise_by_what_its_clients_see(
    folder: Path,
) -> None:
    wanted: list[Exchange] = []
    with vllm(Pages(), wanted) as url:
        done = verify(folder, url, "--json")
    assert done.returncode in {0, 6}, done.stderr  # how fast this machine is is no matter
    result = json.loads(done.stdout)
    assert [gate["name"] for gate in result["gates"]] == [
        "attainment", "ttft_p95_ms", "tpot_p95_ms", "e2el_p95_ms"
    ]  # fmt: skip
    (tpot,) = (gate for gate in result["gates"] if gate["name"] == "tpot_p95_ms")
    assert tpot["measured"] > 1e3 * TOKEN_S
    assert len(wanted) >= WARM_UPS + 10  # 1 s at 20 a second, less what the draining takes
    assert {each.body["model"] for each in wanted} == {MODEL}
    assert all(each.body["ignore_eos"] for each in wanted)
    assert {each.body["temperature"] for each in wanted} == {0.0}  # a simulation drew none
    assert not any("authorization" in map(str.lower, each.headers) for each in wanted)


@pytest.mark.parametrize(
    ("pages", "code", "message"),
    [
        (Pages().with_status("/metrics", b"503 Service Unavailable"), 3, "answers 503"),
        (Pages().with_status("/metrics", b"404 Not Found"), 3, "answers 404"),
        (Pages().with_page("/metrics", b"python_gc_objects 3\n"), 3, "no metric of vLLM"),
        (Pages().with_page("/metrics", b"vllm:num_requests_running three\n"), 3, "not Prometheus"),
        (Pages(running=3), 6, "is serving 3 requests"),
        (Pages(model="acme/other"), 6, "the server serves model acme/other and not acme/tiny"),
    ],
    ids=["not ready", "a gateway", "no vLLM", "damaged", "busy", "another model"],
)
def test_a_server_that_may_not_be_asked_is_sent_nothing(
    folder: Path, pages: Pages, code: int, message: str
) -> None:
    wanted: list[Exchange] = []
    with vllm(pages, wanted) as url:
        done = verify(folder, url)
    assert (done.returncode, wanted) == (code, []), done.stderr
    assert message in " ".join(done.stderr.split())


def test_a_key_is_sent_when_its_variable_is_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[Exchange] = []

    async def locked(exchange: Exchange) -> None:
        words = f"no such key: {exchange.headers.get('Authorization')}".encode()
        await exchange.send(
            b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%b" % (len(words), words)
        )

    with vllm(Pages(), wanted, locked) as url:
        without = verify(folder, url)
        monkeypatch.setenv("TUNER_API_KEY", "sesame")
        named = verify(folder, url, "--run-dir", "kept")
    assert without.returncode == named.returncode == 4
    assert "the first request failed: 401 Unauthorized" in without.stderr
    assert "Set TUNER_API_KEY" in without.stderr
    assert [each.headers.get("Authorization") for each in wanted] == [None, "Bearer sesame"]
    files = [each for each in (folder / "kept").rglob("*") if each.is_file()]
    written = "".join(file.read_text(errors="replace") for file in files)
    assert "sesame" not in named.stdout + named.stderr + written


def test_another_vllm_is_sent_nothing_unless_forced(folder: Path, tmp_path: Path) -> None:
    item = load(folder / "profile.yaml")
    measured = msgspec.structs.replace(item.provenance, versions={"vllm": "0.31.0"})
    kept = evidence_of(item, folder / "profile.yaml")
    save(resealed(item, provenance=measured, evidence=kept), tmp_path / "profile.yaml")
    shutil.copy(folder / "prod.jsonl", tmp_path)
    wanted: list[Exchange] = []
    with vllm(Pages(version="0.32.0"), wanted) as url:
        done = verify(tmp_path, url)
        assert (done.returncode, wanted) == (6, [])
        assert "measured with vLLM 0.31.0, the server is 0.32.0" in done.stderr
        assert verify(tmp_path, url, "--force").returncode in {0, 6}


def test_a_server_elsewhere_is_sent_nothing_before_its_user_allows_it(folder: Path) -> None:
    wanted: list[Exchange] = []
    with vllm(Pages(), wanted) as url:
        elsewhere = url.replace("127.0.0.1", "0.0.0.0")
        unasked = verify(folder, elsewhere)
    assert (unasked.returncode, wanted) == (2, [])
    assert "--send-load" in unasked.stderr


async def at_once(exchange: Exchange) -> None:
    tokens = exchange.body["max_tokens"]
    await exchange.send(HEAD)
    await exchange.event(TOKEN * tokens, usage(tokens), DONE)
    await exchange.end()


async def uncounted(exchange: Exchange) -> None:
    await paced(exchange, exchange.body["max_tokens"])


async def short(exchange: Exchange) -> None:
    await paced(exchange, exchange.body["max_tokens"] - 1)


@pytest.mark.parametrize(
    ("pages", "answer", "message"),
    [
        (Pages(), lambda exchange: refused(exchange, b"429 Too Many Requests"), "429"),
        (Pages(), at_once, "buffers what it streams"),
        (Pages(), uncounted, "its counter moved by 0"),
        (Pages(), short, "7 of 8 tokens"),
    ],
)
def test_what_is_in_the_way_ends_the_run_in_one_line(
    folder: Path, pages: Pages, answer: Answer, message: str
) -> None:
    with vllm(pages, [], answer) as url:
        done = verify(folder, url)
    assert done.returncode == 4
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
