"""The control socket of a live server: what it does, refuses and survives."""

import json
import math
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.live_servers import Server, said, serving
from tuner.errors import GateError, InputError, TargetError, TunerError
from tuner.live import control, control_client
from tuner.live.control import (
    Answer,
    SetLimits,
    line_of,
    listen,
    withdraw,
)

STATE = b'{"version": 3, "do": "state"}\n'
SET = line_of(SetLimits(8))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "tuner.sock") as served:
        yield served


def put(server: Server, cap: int, **more: Any) -> Answer:  # noqa: ANN401 - of SetLimits
    return control_client.ask(server.path, SetLimits(cap, **more))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cap": 33}, "max_num_seqs 33 is more than the 32 that the server was built for"),
        ({"cap": 8, "max_num_batched_tokens": 8193}, "max_num_batched_tokens 8193 is more than"),
        ({"cap": 8, "max_num_batched_tokens": 7}, "max_num_batched_tokens 7 is less than the 8"),
    ],
)
def test_what_the_server_was_not_built_for_is_refused(
    server: Server, change: dict[str, Any], why: str
) -> None:
    with pytest.raises(GateError, match=why):
        put(server, **change)
    assert server.cap == 32


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_socket_is_for_its_owner_alone_and_goes_with_the_server(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with serving(tmp_path / "tuner.sock") as server:
            assert mode(server.path) == 0o600
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []


def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "tuner.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with pytest.raises(InputError, match="nobody listens there any more"):
        control_client.state(path)
    listening = listen(str(path), rank=0)
    assert listening.path == path
    withdraw(listening)
    assert not path.exists()


def test_the_socket_of_a_living_server_is_not(server: Server) -> None:
    with pytest.raises(TargetError, match="a living server listens there"):
        listen(str(server.path), rank=0)
    assert server.state.limits.max_num_seqs == 32


@pytest.mark.parametrize(
    ("path", "why"),
    [("tuner.sock", "not the whole path"), ("/", "not the whole path"), ("/" + "x" * 90, "long")],
)
def test_paths_that_cannot_be_used_are_refused(path: str, why: str) -> None:
    with pytest.raises(TargetError, match=why):
        listen(path, rank=0)


@pytest.mark.attack
def test_what_others_can_replace_or_have_planted_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "tuner.sock"
    path.write_text("mine")
    with pytest.raises(TargetError, match="is there and is no socket"):
        listen(str(path), rank=0)
    path.unlink()
    path.symlink_to(tmp_path / "theirs")
    with pytest.raises(TargetError, match="is there and is no socket"):
        listen(str(path), rank=0)
    path.unlink()
    tmp_path.chmod(0o777)
    with pytest.raises(TargetError, match="others may replace what is in it"):
        listen(str(path), rank=0)
    tmp_path.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(tmp_path, 1234, 1234)
        with pytest.raises(TargetError, match="belongs to another user"):
            listen(str(path), rank=0)


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, -1, 2**31 + 1, 10**300, 1e308, math.nan, "", "\ud800", "\x1b[2J", "x" * 600),
        *([], {}, [[]], {"\ud800": "\ud800"}, ["a"] * 30, "set"),
    ]
)
FIELDS = st.sampled_from(["version", "do", "reason", "max_num_seqs", "max_num_batched_tokens", "x"])


@pytest.mark.attack
def test_whatever_a_line_asks_for_is_answered_in_words_and_changes_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "tuner.sock") as server:

        @settings(max_examples=200)
        @given(
            do=st.sampled_from(["state", "set", "\ud800"]),
            more=st.dictionaries(FIELDS, ODD, max_size=6),
        )
        def ask(do: str, more: dict[str, object]) -> None:
            answer = said(server.path, json.dumps({"do": do, **more}).encode() + b"\n")
            assert answer["ok"] or answer["kind"] in {"request", "refused"}
            assert answer["state"] is not None

        ask()
        assert server.state.limits.max_num_seqs == 32


def test_a_client_that_is_slow_makes_others_wait_for_a_moment_only(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CLIENT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(server.path))
        slow.sendall(STATE[:5])
        assert server.state.limits.max_num_seqs == 32


@pytest.mark.parametrize("how", ["closed", "shut down"])
def test_a_request_whose_sender_gave_up_in_the_queue_is_not_carried_out(
    server: Server, how: str
) -> None:
    with socket.socket(socket.AF_UNIX) as before, socket.socket(socket.AF_UNIX) as client:
        before.connect(str(server.path))  # is served first, and says nothing yet
        client.connect(str(server.path))
        client.sendall(SET)
        if how == "shut down":
            client.shutdown(socket.SHUT_RDWR)
        else:
            client.close()
    assert server.state.limits.max_num_seqs == 32


@contextmanager
def answering(path: Path, reply: bytes) -> Iterator[None]:
    """Listen at a path, and answer one client with this."""

    def serve() -> None:
        client, _ = listening.accept()
        with client:
            client.recv(2**16)
            client.sendall(reply)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(20)


@pytest.mark.parametrize(
    "reply",
    [
        *(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\n", b"{}\n", b'{"ok": true}\n'),
        b'{"ok": false, "error": "\\ud800", "hint": "\\u001b[2J"}\n',
    ],
)
def test_what_answers_otherwise_is_no_live_server(tmp_path: Path, reply: bytes) -> None:
    path = tmp_path / "other.sock"
    with answering(path, reply), pytest.raises(TunerError):
        control_client.state(path)


def as_another_user(code: str, *words: object) -> "subprocess.Popen[str]":
    begin = "import os, socket, sys\nos.setgroups([])\nos.setgid(1234)\nos.setuid(1234)\n"
    command = [sys.executable, "-I", "-S", "-c", begin + code, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def shared() -> Iterator[Path]:
    """Give a folder that others reach; pytest closes its own, also while another pytest runs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        if not all(above.stat().st_mode & stat.S_IXOTH for above in folder.parents):
            pytest.skip(f"{folder.parent} is closed to others")
        yield folder


AS_SERVER = """
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listening.listen()
print(flush=True)
client, _ = listening.accept()
print(len(client.recv(65536)), flush=True)
"""


@pytest.mark.attack
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_another_user_who_listens_there_is_told_nothing(shared: Path) -> None:
    path = shared / "tuner.sock"
    with as_another_user(AS_SERVER, path) as server:
        assert server.stdout is not None
        assert server.stdout.readline()
        os.chown(path, 0, 0)  # whoever has the file, he listens
        with pytest.raises(InputError, match="is of user 1234, who may be anybody"):
            control_client.ask(path, SetLimits(8))
        assert server.stdout.readline() == "0\n"


@pytest.mark.attack
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_another_user_cannot_connect(tmp_path: Path) -> None:
    code = "socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    with serving(tmp_path / "tuner.sock") as server, as_another_user(code, server.path) as wanted:
        assert wanted.wait(20) != 0
