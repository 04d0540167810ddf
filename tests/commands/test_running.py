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
from tuner.engines.paged import WARM_UPS
from tuner.engines.server import running as engines_running
from tuner.profile.profile import evidence_of, load, resealed, save
from tuner.replay import soundness
from tuner.traffic import sampling, workload

WORLD = "step: {a: 0.020, b: 0.0006, n0: 16, h: 0.0025, c: 1.0e-5}\n"
MODEL = "acme/tiny"
TOKEN_S = 0.002
"""A tenth of what the profile's machine takes."""

STEP_S = 1.0
RATE_RPS = 20

TUNING = (
    *("--world", "world.yaml", "--trace", "prod.jsonl"),
    *("--ceiling", "8"),
)

Answer = Callable[[Exchange], Awaitable[None]]


def trace_of(model: str, rate_rps: int) -> str:
    header = {"tuner_trace": 1, "time_unit": "ms", "model": model}
    rows = [
        {"timestamp": 1000 * row // rate_rps, "input_length": 20, "output_length": 10}
        for row in range(120)
    ]
    return "\n".join(map(json.dumps, (header, *rows))) + "\n"


@pytest.fixture(autouse=True)
def _no_long_waits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine here is slow: a shorter replay than users may ask for tells enough of it."""
    if request.node.get_closest_marker("vllm"):
        return
    monkeypatch.setattr(workload, "MIN_STEP_S", STEP_S)
    monkeypatch.setattr(sampling, "MIN_WINDOW_S", STEP_S / 2)
    monkeypatch.setattr(engines_running, "_COUNTED_S", 0.2)
    monkeypatch.setattr(soundness, "LEAST_LAG_S", 60.0)  # how busy this machine is is no matter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a profile of a simulated machine and its trace: 20 requests a second,
    10 tokens each."""
    path = tmp_path_factory.mktemp("verify")
    (path / "prod.jsonl").write_text(trace_of(MODEL, RATE_RPS))
    (path / "world.yaml").write_text(WORLD)
    done = tuner(path, "sweep", *TUNING)
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

    def only_models(self) -> "Pages":
        """Return the pages of a server that is no vLLM."""
        del self["/metrics"], self["/version"]
        return self

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


KEPT = ("--junit", "kept.xml", "--run-dir", "kept")


def written(folder: Path) -> str:
    """Return all that a run with KEPT has left, and take it away."""
    (folder / "kept").mkdir(exist_ok=True)
    files = [
        each for each in (folder / "kept.xml", *(folder / "kept").rglob("*")) if each.is_file()
    ]
    words = "".join(file.read_text(errors="replace") for file in files)
    shutil.rmtree(folder / "kept")
    (folder / "kept.xml").unlink(missing_ok=True)
    return words


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
    assert result["p95_ms"]["tpot"] > 1e3 * TOKEN_S
    assert len(wanted) >= WARM_UPS + 10  # 1 s at 20 a second, less what the draining takes
    assert {each.body["model"] for each in wanted} == {MODEL}
    assert all(each.body["ignore_eos"] for each in wanted)
    assert {each.body["temperature"] for each in wanted} == {0.0}  # a simulation drew none
    assert not any("authorization" in map(str.lower, each.headers) for each in wanted)


@pytest.mark.parametrize(
    ("pages", "message", "cure"),
    [
        (
            Pages().with_status("/metrics", b"503 Service Unavailable"),
            "answers 503",
            "/health answers",
        ),
        (Pages().with_status("/metrics", b"500 Oh"), "answers 500", "a vLLM server's address"),
        (Pages().with_status("/metrics", b"302 Found"), "answers 302", "a vLLM server's address"),
        (Pages().with_page("/metrics", b"x" * (8 * 2**20 + 1)), "answers too much", "address"),
        (
            Pages().with_page("/metrics", b"vllm:num_requests_running three\n"),
            "not Prometheus text",
            "the server's /metrics",
        ),
    ],
    ids=["not ready", "broken", "elsewhere", "endless", "damaged"],
)
def test_a_server_of_which_nobody_knows_what_it_is_is_sent_nothing(
    folder: Path, pages: Pages, message: str, cure: str
) -> None:
    """It would be asked without any of the guards that a vLLM has."""
    wanted: list[Exchange] = []
    with vllm(pages, wanted) as url:
        done = verify(folder, url)
    assert (done.returncode, wanted) == (3, []), done.stderr
    words = " ".join(done.stderr.split())
    assert f"/metrics: {message}" in words
    assert cure in words


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
        named = verify(folder, url, *KEPT)
    assert without.returncode == named.returncode == 4
    assert "the first request failed: 401 Unauthorized" in without.stderr
    assert "Set TUNER_API_KEY" in without.stderr
    assert [each.headers.get("Authorization") for each in wanted] == [None, "Bearer sesame"]
    assert "no such key: Bearer ***" in named.stderr
    assert "sesame" not in named.stdout + named.stderr + written(folder)


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        (Pages(running=3), "is serving 3 requests"),
        (Pages(model="acme/other"), "the server serves model acme/other and not acme/tiny"),
    ],
)
def test_a_server_that_cannot_be_held_to_it_is_sent_nothing(
    folder: Path, pages: Pages, message: str
) -> None:
    wanted: list[Exchange] = []
    with vllm(pages, wanted) as url:
        done = verify(folder, url)
    assert (done.returncode, wanted) == (6, [])
    assert message in done.stderr


def measured_with(folder: Path, place: Path, **changes: object) -> None:
    """Lay a profile with this provenance, and its trace, into another folder."""
    item = load(folder / "profile.yaml")
    measured = msgspec.structs.replace(item.provenance, **changes)
    kept = evidence_of(item, folder / "profile.yaml")
    save(resealed(item, provenance=measured, evidence=kept), place / "profile.yaml")
    if not (place / "prod.jsonl").exists():
        shutil.copy(folder / "prod.jsonl", place)


def test_another_vllm_is_sent_nothing_unless_forced_nor_one_that_serves_others(
    folder: Path, tmp_path: Path
) -> None:
    variables = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0"}
    measured_with(folder, tmp_path, versions={"vllm": "0.31.0"}, environment=variables)
    wanted: list[Exchange] = []
    with vllm(Pages(version="0.32.0"), wanted) as url:
        done = verify(tmp_path, url)
        assert (done.returncode, wanted) == (6, [])
        assert "measured with vLLM 0.31.0, the server is 0.32.0" in done.stderr
        done = verify(tmp_path, url, "--force")
        assert done.returncode in {0, 6}, done.stdout + done.stderr
        assert "measured with OMP_NUM_THREADS=1 in the environment: whether" in done.stderr
    busy: list[Exchange] = []
    with vllm(Pages(version="0.32.0", running=3), busy) as url:
        assert (verify(tmp_path, url, "--force").returncode, busy) == (6, [])


def test_a_server_elsewhere_is_sent_nothing_before_its_user_allows_so_many(folder: Path) -> None:
    wanted: list[Exchange] = []
    with vllm(Pages(), wanted) as url:
        elsewhere = url.replace("127.0.0.1", "0.0.0.0")
        unasked = verify(folder, elsewhere)
        few = verify(folder, elsewhere, "--send-load", "3")
    assert (unasked.returncode, few.returncode, wanted) == (2, 2, [])
    assert "requests of this trace's load" in unasked.stderr
    assert "--send-load" in few.stderr


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
        (Pages().only_models(), short, "ended before the requested length"),
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
