"""Servers of strangers: whatever they answer, a command ends with one error in bounded time."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.outside.machines.swept import HERE as MACHINES
from tests.outside.table import BAD_INPUT, OK, UNDECIDED, Done, run

pytestmark = pytest.mark.attack

LABELS = ",".join(f'a{i}="x"' for i in range(40_000))
ANSWERS = {
    "garbage": b"\x00\x1b[2J\xff" * 100,
    "a page": b"<html><body>Sign in</body></html>",
    "nothing": b"",
    "not a number": b"vllm:num_requests_running NaN\n",
    "no vLLM": b"process_start_time_seconds 1\n",
    "labels": b"vllm:num_requests_running{" + LABELS.encode() + b"} 1\n",
    "a name": b'vllm:num_requests_running{model_name="\x1b]0;x\x07\xe2\x80\xae"} 1\n',
    "a long line": b"#" * 20_000_000,
}
STATUS = {"redirect to a file": (302, "file:///etc/passwd"), "a loop": (302, "/metrics"),
          "redirect": (302, "http://127.0.0.1:1/"), "failure": (500, None)}  # fmt: skip


@contextmanager
def answering(name: str) -> Iterator[tuple[str, list[str]]]:
    """Serve one answer at every path; collect what is asked, with its authorization."""
    wanted: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted.append(f"{self.path} {self.headers.get('Authorization')}")
            status, to = STATUS.get(name, (200, None))
            self.send_response(status)
            if to:
                self.send_header("Location", to)
            self.end_headers()
            self.wfile.write(ANSWERS.get(name, b""))

        def do_POST(self) -> None:
            self.do_GET()

        def handle(self) -> None:
            with suppress(OSError):  # who asked has seen enough
                super().handle()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", wanted
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    sim = ("--world", MACHINES / "still" / "world.yaml", "--ceiling", "8")
    assert run(folder, "sweep", *sim, "--trace", MACHINES / "traces" / "light.jsonl").code == OK
    return folder


def harmless(done: Done) -> None:
    assert done.code in {BAD_INPUT, UNDECIDED}, done.stderr
    assert done.error
    assert not set("\x1b\u202e\x07") & set(done.stdout + done.stderr)


@pytest.mark.usefixtures("free_clock")
@pytest.mark.parametrize("answer", [*ANSWERS, *STATUS])
def test_a_watch_of_a_stranger_ends_with_one_error(swept: Path, answer: str) -> None:
    with answering(answer) as (url, _):
        harmless(run(swept, "watch", "profile.yaml", "--url", url, "--for", "1m"))


@pytest.mark.parametrize("answer", ["garbage", "a page", "nothing", "failure", "a long line"])
def test_a_history_of_a_stranger_ends_with_one_error(swept: Path, answer: str) -> None:
    with answering(answer) as (url, _):
        harmless(run(swept, "history", url, "-o", "out.jsonl"))
    assert not (swept / "out.jsonl").exists()


def test_a_server_that_never_answers_is_given_up(swept: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        harmless(run(swept, "watch", "profile.yaml", "--url", url, "--for", "1m"))


def test_a_token_goes_to_the_server_that_was_named_and_to_no_other(
    swept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_PROMETHEUS_TOKEN", "secret-token")
    with answering("nothing") as (trap, leaked):
        monkeypatch.setitem(STATUS, "elsewhere", (302, trap))
        with answering("elsewhere") as (url, wanted):
            done = run(swept, "history", url, "-o", "out.jsonl")
    harmless(done)
    assert any("secret-token" in line for line in wanted)
    assert not any("secret-token" in line for line in leaked)
    assert "secret-token" not in done.stdout + done.stderr
