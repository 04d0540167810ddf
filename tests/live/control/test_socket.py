"""The control socket against clients and users that mean no good, and servers that were killed."""

import contextlib
import fcntl
import json
import math
import os
import resource
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.live_servers import Numbers, Server, said, serving
from tuner.engines.server import control_client
from tuner.engines.server.peer import Peer, peer_of
from tuner.engines.server.protocol import MAX_LINE_BYTES, VERSION, Answer, SetLimits, line_of
from tuner.errors import EngineError, InputError, TargetError, TunerError
from tuner.live.control import listener, socket_files

AS_ANOTHER = """
import os, socket, sys
os.setgroups([])
os.setgid(1234)
os.setuid(1234)
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
try:
    client.sendall(b'{"version": 2, "do": "state"}\\n')
    answer = client.recv(1)
except ConnectionError:
    answer = b""
sys.exit(len(answer))
"""
STATE = b'{"version": 2, "do": "state"}\n'


def place(path: Path) -> socket_files.Place:
    return socket_files.place(str(path), rank=0, audit=None)


@pytest.fixture
def shared() -> Iterator[Path]:
    """Give a folder that others reach; pytest closes its own, also while another pytest runs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        if not all(above.stat().st_mode & stat.S_IXOTH for above in folder.parents):
            pytest.skip(f"{folder.parent} is closed to others")
        yield folder


def uses(at: socket_files.Place) -> list[Callable[[], object]]:
    return [
        lambda: socket_files.append(at, {}),
        lambda: socket_files.load_schedule(at),
        lambda: socket_files.keep_schedule(at, b"{}"),
    ]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_socket_and_its_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with serving(tmp_path / "tuner.sock") as server:
            assert mode(server.path) == 0o600
            assert mode(tmp_path / "tuner.sock.audit.jsonl") == 0o600
    finally:
        os.umask(before)


def test_a_socket_may_lie_deeper_than_an_address_is_long(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["f" * 50] * 4)
    folder.mkdir(parents=True)
    with serving(folder / "tuner.sock") as server:
        assert server.state.limits.max_num_seqs == 32


def test_the_ranks_of_a_server_have_a_socket_each(tmp_path: Path) -> None:
    path = tmp_path / "tuner.sock"
    with serving(path), serving(path, rank=1) as one, serving(path, rank=10) as ten:
        assert [one.path.name, ten.path.name] == ["tuner.sock.dp1", "tuner.sock.dp10"]
        (tmp_path / "tuner.sock.dp2x").touch()
        assert control_client.ranks(path) == [path, one.path, ten.path]


def test_the_socket_goes_with_the_server(tmp_path: Path) -> None:
    with serving(tmp_path / "tuner.sock"):
        pass
    assert not (tmp_path / "tuner.sock").exists()


def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "tuner.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with pytest.raises(InputError, match="nobody listens there any more"):
        control_client.state(path)
    with serving(path) as server:
        assert server.state.limits.max_num_seqs == 32


def test_the_socket_of_a_living_server_is_not(tmp_path: Path) -> None:
    path = tmp_path / "tuner.sock"
    with serving(path) as server:
        with pytest.raises(TargetError, match="a living server listens there"):
            socket_files.listen(place(path))
        assert server.state.limits.max_num_seqs == 32


def test_of_two_servers_that_start_at_once_one_gets_the_socket(tmp_path: Path) -> None:
    at = place(tmp_path / "tuner.sock")
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(at.socket))
    got: list[socket_files.Listening] = []
    refused: list[TargetError] = []
    start = threading.Barrier(4)

    def listen() -> None:
        start.wait()
        try:
            got.append(socket_files.listen(at))
        except TargetError as problem:
            refused.append(problem)

    threads = [threading.Thread(target=listen) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 3)
    got[0].socket.close()


def test_a_server_waits_for_another_that_is_taking_its_socket_in_the_same_folder(
    tmp_path: Path,
) -> None:
    at, done = place(tmp_path / "tuner.sock"), threading.Event()

    def listen() -> None:
        socket_files.listen(at).socket.close()
        done.set()

    thread = threading.Thread(target=listen)
    at.lock.touch(0o600)
    with at.lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread.start()
        assert not done.wait(0.2)
    thread.join()
    assert done.is_set()


@pytest.mark.attack
def test_whoever_can_read_the_folder_cannot_lock_a_server_out(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with serving(tmp_path / "tuner.sock") as server:
            control_client.ask(server.path, lowered_to(8, server))
            assert mode(tmp_path / "tuner.sock.lock") == 0o600
    finally:
        os.close(folder)


def test_all_ranks_share_a_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "tuner.sock")
    one, other = (socket_files.place(path, rank=rank, audit=None) for rank in (0, 3))
    assert one.lock == other.lock == tmp_path / "tuner.sock.lock"


def test_a_lock_that_others_could_hold_is_not_used(tmp_path: Path) -> None:
    at, elsewhere = place(tmp_path / "tuner.sock"), tmp_path / "elsewhere"
    elsewhere.touch(0o600)
    at.lock.symlink_to(elsewhere)
    with pytest.raises(TargetError, match="is a link"):
        socket_files.listen(at)
    at.lock.unlink()
    at.lock.touch()
    at.lock.chmod(0o640)
    with pytest.raises(TargetError, match="others may lock it") as refused:
        socket_files.listen(at)
    assert refused.value.hint == f"chmod 600 {at.lock}"
    if os.geteuid() == 0:
        at.lock.chmod(0o600)
        os.chown(at.lock, 1234, 1234)
        with pytest.raises(TargetError, match="no regular file of the server's user"):
            socket_files.listen(at)


def test_a_server_that_ends_leaves_its_successors_socket(tmp_path: Path) -> None:
    at = place(tmp_path / "tuner.sock")
    ending = socket_files.listen(at)
    at.socket.unlink()  # by somebody who thought that it had ended
    with serving(at.socket) as successor:
        socket_files.withdraw(at, ending)
        assert successor.state.limits.max_num_seqs == 32


@pytest.mark.parametrize("kind", ["file", "folder", "link", "dangling", "link to a socket"])
def test_what_is_no_socket_is_left_alone(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "tuner.sock", tmp_path / "precious"
    other.write_text("precious")
    with socket.socket(socket.AF_UNIX) as elsewhere:
        elsewhere.bind(str(tmp_path / "elsewhere"))
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    else:
        target = {"link": other, "dangling": tmp_path / "none"}.get(kind, tmp_path / "elsewhere")
        path.symlink_to(target)
    with pytest.raises(TargetError, match="is there and is no socket"):
        socket_files.listen(place(path))
    assert os.path.lexists(path)
    assert other.read_text() == "precious"
    assert not (tmp_path / "none").exists()


@pytest.mark.attack
@pytest.mark.parametrize(
    ("folder_mode", "is_safe"),
    [
        *((safe, True) for safe in (0o700, 0o755, 0o1777)),
        *((open_, False) for open_ in (0o777, 0o775, 0o757)),
    ],
)
def test_a_folder_that_others_write_to_is_refused_unless_it_is_sticky(
    tmp_path: Path, folder_mode: int, is_safe: bool
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(folder_mode)
    if is_safe:
        place(folder / "tuner.sock")
        return
    with pytest.raises(TargetError, match="others may replace what is in it") as refused:
        place(folder / "tuner.sock")
    assert refused.value.hint == f"chmod go-w {folder}"


@pytest.mark.attack
@pytest.mark.parametrize("open_mode", [0o777, 0o775, 0o757])
def test_every_folder_above_is_closed_to_others_or_sticky(tmp_path: Path, open_mode: int) -> None:
    above, folder = tmp_path / "a", tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True, mode=0o700)
    (tmp_path / "link").symlink_to(above / "b")
    above.chmod(open_mode)
    for path in (folder / "tuner.sock", tmp_path / "link" / "c" / "tuner.sock"):
        with pytest.raises(TargetError, match=f"{above}: others may replace what is in it"):
            place(path)
    above.chmod(0o1777)
    assert place(tmp_path / "link" / "c" / "tuner.sock") == place(folder / "tuner.sock")


@pytest.mark.attack
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_in_a_sticky_one_that_is_somebody_elses_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "ours").mkdir(parents=True, mode=0o700)
    tmp_path.chmod(0o1777)
    os.chown(theirs, 1234, 1234)
    with pytest.raises(TargetError, match=rf"{theirs}: belongs to another user \(1234\)"):
        place(theirs / "ours" / "tuner.sock")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_belongs_to_others_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    os.chown(folder, 1234, 1234)
    with pytest.raises(TargetError, match=r"belongs to another user \(1234\)"):
        place(folder / "tuner.sock")
    at = place(tmp_path / "tuner.sock")
    for path, use in zip((at.audit, at.schedule, at.schedule), uses(at), strict=True):
        path.write_text("theirs")
        os.chown(path, 1234, 1234)
        with pytest.raises(TargetError, match="no regular file of the server's user"):
            use()
        assert path.read_text() == "theirs"


def test_the_kept_schedule_is_for_its_owner_alone(tmp_path: Path) -> None:
    at = place(tmp_path / "tuner.sock")
    before = os.umask(0)
    try:
        socket_files.keep_schedule(at, b"{}")
    finally:
        os.umask(before)
    assert mode(at.schedule) == 0o600
    at.schedule.chmod(0o666)
    with pytest.raises(TargetError, match="others may write to it"):
        socket_files.load_schedule(at)


def test_an_audit_that_somebody_has_locked_is_an_error_and_no_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_files, "_AUDIT_S", 0.0)
    at = place(tmp_path / "tuner.sock")
    at.audit.touch(0o600)
    at.lock.touch(0o600)
    with at.audit.open() as reader, at.lock.open() as theirs:
        fcntl.flock(reader, fcntl.LOCK_EX)
        socket_files.append(at, {"event": "x"})  # whoever may read it is nobody to wait for
        at.audit.write_bytes(b"")
        fcntl.flock(theirs, fcntl.LOCK_EX)
        with pytest.raises(TargetError, match="another process has locked it"):
            socket_files.append(at, {"event": "x"})
    assert at.audit.read_bytes() == b""


@contextlib.contextmanager
def answering(path: Path, answer: Callable[[bytes], bytes]) -> Iterator[None]:
    """A server that answers one request so."""

    def serve() -> None:
        client, _ = listening.accept()
        with client:
            client.sendall(answer(client.recv(2**16)))

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def lowered_to_8() -> SetLimits:
    return SetLimits(version=VERSION, do="set", max_num_seqs=8, profile="sha256:" + "0" * 64)


def lowered_to(cap: int, server: Server) -> SetLimits:
    revision = control_client.state(server.path).revision
    return SetLimits(
        version=VERSION, do="set", revision=revision, max_num_seqs=cap, profile="sha256:" + "0" * 64
    )


def test_only_our_own_change_is_put_back(tmp_path: Path) -> None:
    with serving(tmp_path / "a.sock") as one:

        def refuse_after_somebody_else(_: bytes) -> bytes:
            control_client.ask(one.path, lowered_to(5, one))
            return line_of(Answer(ok=False, kind="refused", error="busy"))

        ours = lowered_to(8, one)
        with (
            answering(tmp_path / "b.sock", refuse_after_somebody_else),
            pytest.raises(EngineError, match="was changed, and could not be put back"),
        ):
            control_client.change_all([(one.path, ours), (tmp_path / "b.sock", ours)])
        assert one.cap == 5


def test_a_change_whose_answer_got_lost_is_put_back(tmp_path: Path) -> None:
    with serving(tmp_path / "a.sock") as one:

        def change_and_break(asked: bytes) -> bytes:
            said(one.path, asked)
            (tmp_path / "b.sock").unlink()
            (tmp_path / "b.sock").symlink_to(one.path)
            return b""

        ours = lowered_to(8, one)
        with answering(tmp_path / "b.sock", change_and_break), pytest.raises(InputError):
            control_client.change_all([(tmp_path / "b.sock", ours)])
        assert one.cap == 32


def test_a_change_that_was_not_made_is_no_reason_to_undo_somebody_elses(tmp_path: Path) -> None:
    with serving(tmp_path / "a.sock") as one:

        def break_after_somebody_else(_: bytes) -> bytes:
            control_client.ask(one.path, lowered_to(5, one))
            (tmp_path / "b.sock").unlink()
            (tmp_path / "b.sock").symlink_to(one.path)
            return b""

        ours = lowered_to(8, one)
        with answering(tmp_path / "b.sock", break_after_somebody_else), pytest.raises(InputError):
            control_client.change_all([(tmp_path / "b.sock", ours)])
        assert one.cap == 5


def test_a_file_with_a_second_name_is_not_written_to(tmp_path: Path) -> None:
    at, precious = place(tmp_path / "tuner.sock"), tmp_path / "precious"
    precious.write_text("precious")
    precious.chmod(0o600)
    at.audit.hardlink_to(precious)
    with pytest.raises(TargetError, match="no regular file of the server's user alone"):
        socket_files.append(at, {"event": "x"})
    assert precious.read_text() == "precious"


@pytest.mark.attack
def test_links_beside_the_socket_are_not_followed(tmp_path: Path) -> None:
    at, precious = place(tmp_path / "tuner.sock"), tmp_path / "precious"
    precious.write_text("precious")
    at.audit.symlink_to(precious)
    at.schedule.symlink_to(precious)
    for use in uses(at):
        with pytest.raises(TargetError):
            use()
    assert precious.read_text() == "precious"


@pytest.mark.parametrize(
    "path",
    ["tuner.sock", "", "/", "/none/there/tuner.sock", "/etc/passwd/tuner.sock", "/tmp/" + "s" * 90],
)
def test_paths_that_cannot_be_used_are_refused(path: str) -> None:
    with pytest.raises(TargetError):
        socket_files.place(path, rank=0, audit=None)


def test_the_audit_may_be_elsewhere_but_not_anywhere(tmp_path: Path) -> None:
    path = str(tmp_path / "tuner.sock")
    at = socket_files.place(path, rank=0, audit=str(tmp_path / "audit.jsonl"))
    socket_files.append(at, {"event": "set"})
    assert json.loads((tmp_path / "audit.jsonl").read_text()) == {"event": "set"}
    with pytest.raises(TargetError, match="whole path of the audit"):
        socket_files.place(path, rank=0, audit="audit.jsonl")
    open_ = tmp_path / "open"
    open_.mkdir()
    open_.chmod(0o777)
    for audit, why in ((open_ / "a.jsonl", "others may replace"), ("/none/a", "no such file")):
        with pytest.raises(TargetError, match=why):
            socket_files.place(path, rank=0, audit=str(audit))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TargetError):  # without waiting for a reader
        socket_files.append(socket_files.place(path, rank=0, audit=str(tmp_path / "pipe")), {})


# -- clients


def test_the_kernel_says_who_is_there() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert peer_of(ours) == Peer(os.getpid(), os.geteuid())


@pytest.mark.attack
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_another_user_is_turned_away_even_where_the_mode_would_let_him_in(shared: Path) -> None:
    with serving(shared / "tuner.sock") as server:
        server.path.chmod(0o666)
        asked = subprocess.run(
            [sys.executable, "-I", "-S", "-c", AS_ANOTHER, server.path], check=False, timeout=20
        )
        assert asked.returncode == 0
        assert server.state.limits.max_num_seqs == 32


def test_a_line_without_end_is_cut_off(tmp_path: Path) -> None:
    with serving(tmp_path / "tuner.sock") as server:
        endless = b'{"version": 2, "do": "' + b"x" * control_client.MAX_ANSWER_BYTES
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            said(server.path, endless)
        answer = said(server.path, b"x" * (MAX_LINE_BYTES + 1))
        assert "longer than 65536 bytes" in answer["error"]
        assert server.state.limits.max_num_seqs == 32


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, -1, 2**31, 10**300, 1e308, math.nan, "", "\ud800", "\x1b[2J", "x" * 600),
        *([], {}, [[]], {"\ud800": "\ud800"}, ["a"] * 30, "take_log", "set"),
    ]
)
FIELDS = st.sampled_from(
    [
        *("version", "do", "id", "of", "reason", "override", "profile", "revision", "idle"),
        *("max_num_seqs", "max_num_batched_tokens", "schedule", "go_on", "\ud800", "x"),
    ]
)
ASKS = ("state", "set", "schedule", "clear_schedule", "rollback", "put_back", "take_log", "\ud800")


@pytest.mark.attack
def test_whatever_a_line_asks_for_is_answered_in_words_and_changes_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "tuner.sock") as server:

        @settings(max_examples=300, deadline=None)
        @given(do=st.sampled_from(ASKS), more=st.dictionaries(FIELDS, ODD, max_size=6))
        def ask(do: str, more: dict[str, object]) -> None:
            line = json.dumps({"version": VERSION, "do": do, **more}).encode() + b"\n"
            answer = said(server.path, line)
            assert answer["ok"] or answer["kind"] in {"request", "refused"}
            assert answer["state"] is not None

        ask()
        assert server.state.limits.max_num_seqs == 32


@pytest.mark.attack
def test_an_answer_of_characters_that_are_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    answer = b'{"ok": false, "error": "\\ud800", "hint": "\\u001b[2J"}\n'
    with answering(path, lambda _: answer), pytest.raises(TunerError):
        control_client.state(path)


def test_half_closed_and_silent_clients_are_no_trouble(tmp_path: Path) -> None:
    with serving(tmp_path / "tuner.sock") as server:
        half = said(server.path, STATE, then=lambda client: client.shutdown(socket.SHUT_WR))
        assert half["ok"]
        unended = said(server.path, STATE[:-1], then=lambda client: client.shutdown(socket.SHUT_WR))
        assert unended["ok"]
        assert said(server.path, b"", then=lambda client: client.shutdown(socket.SHUT_WR)) is None
        for _ in range(50):
            with socket.socket(socket.AF_UNIX) as gone:
                gone.connect(str(server.path))
                gone.sendall(STATE)  # and leaves without reading
        assert server.state.limits.max_num_seqs == 32


SET = line_of(lowered_to_8())


@pytest.mark.parametrize("how", ["closed", "shut down", "closed after half of it"])
def test_a_request_whose_sender_gave_up_in_the_queue_is_not_carried_out(
    tmp_path: Path, how: str
) -> None:
    with contextlib.ExitStack() as kept:

        def give_up(path: Path) -> None:
            client = kept.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(str(path))
            client.sendall(SET)
            if how == "closed after half of it":
                client.shutdown(socket.SHUT_WR)
            if how == "shut down":
                client.shutdown(socket.SHUT_RDWR)
            else:
                client.close()

        with serving(tmp_path / "tuner.sock", first=give_up) as server:
            assert server.state.limits.max_num_seqs == 32
            assert [entry["event"] for entry in server.audit] == ["started"]


def test_a_client_that_got_no_answer_in_time_has_changed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_in_vain(path: Path) -> None:
        with monkeypatch.context() as hurried:
            hurried.setattr(control_client, "ANSWER_S", 0.1)
            with pytest.raises(InputError, match="no answer within"):
                control_client.change_all([(path, lowered_to_8())])

    with serving(tmp_path / "tuner.sock", first=wait_in_vain) as server:
        assert server.state.limits.max_num_seqs == 32
        assert [entry["event"] for entry in server.audit] == ["started"]


def test_a_request_whose_sender_only_ended_his_sending_is_carried_out(tmp_path: Path) -> None:
    with serving(tmp_path / "tuner.sock") as server:
        assert said(server.path, SET, then=lambda client: client.shutdown(socket.SHUT_WR))["ok"]
        assert server.cap == 8


AS_SERVER = """
import os, socket, sys
os.setgroups([])
os.setgid(1234)
os.setuid(1234)
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listening.listen()
print(flush=True)
while True:
    client, _ = listening.accept()
    with client:
        print(len(client.recv(65536)), flush=True)
"""


@contextlib.contextmanager
def another_users(path: Path) -> Iterator[IO[str]]:
    """Listen there as another user; give what he says he has been sent, in bytes a line."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", AS_SERVER, path], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline()
            yield server.stdout
        finally:
            server.kill()


@pytest.mark.attack
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_another_user_who_listens_there_is_told_nothing(shared: Path) -> None:
    shared.chmod(0o1777)
    path = shared / "tuner.sock"
    with another_users(path) as sent:
        with pytest.raises(InputError, match=f"{path}: is of user 1234, who may be anybody"):
            control_client.ask(path, lowered_to_8())
        assert sent.readline() == "0\n"
        os.chown(path, 0, 0)  # whoever has the file, he listens
        with pytest.raises(InputError, match="is of user 1234, who may be anybody"):
            control_client.ask(path, lowered_to_8())
        assert sent.readline() == "0\n"


@pytest.mark.attack
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_users_link_to_a_server_is_not_followed(tmp_path: Path) -> None:
    with serving(tmp_path / "tuner.sock") as server:
        link = tmp_path / "link.sock"
        link.symlink_to(server.path)
        assert control_client.state(link).limits.max_num_seqs == 32
        os.lchown(link, 1234, 1234)
        with pytest.raises(InputError, match="is of user 1234, who may be anybody"):
            control_client.state(link)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_root_asks_the_user_whose_folder_it_is(shared: Path) -> None:
    folder = shared / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, 1234, 1234)
    path = folder / "tuner.sock"
    with another_users(path) as sent:
        with pytest.raises(InputError, match="does not answer as a live server does"):
            control_client.ask(path, lowered_to_8())
        assert sent.readline() == f"{len(line_of(lowered_to_8()))}\n"
        shared.chmod(0o777)  # where anybody puts a folder in the place of this one
        with pytest.raises(InputError, match=f"{shared}: others may replace what is in it"):
            control_client.ask(path, lowered_to_8())


def test_slow_clients_make_others_wait_only_when_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "tuner.sock") as server:
        slow = [socket.socket(socket.AF_UNIX) for _ in range(listener.MOST_CLIENTS - 1)]
        for client in slow:
            client.connect(str(server.path))
            client.sendall(STATE[:5])
        assert server.state.limits.max_num_seqs == 32  # beside them
        for client in slow:
            client.close()
        monkeypatch.setattr(listener, "CLIENT_S", 0.2)
        server.state  # noqa: B018 - the next clients get that long
        slow = [socket.socket(socket.AF_UNIX) for _ in range(2 * listener.MOST_CLIENTS)]
        for client in slow:
            client.connect(str(server.path))
            client.sendall(STATE[:5])
        assert server.state.limits.max_num_seqs == 32  # after them
        for client in slow:
            client.close()


def test_no_more_clients_are_served_at_a_time_than_there_is_room_for(tmp_path: Path) -> None:
    with serving(tmp_path / "tuner.sock") as server, contextlib.ExitStack() as clients:
        some = [
            clients.enter_context(socket.socket(socket.AF_UNIX))
            for _ in range(listener.MOST_CLIENTS + 1)
        ]
        for client in some:
            client.connect(str(server.path))
            client.sendall(STATE[:5])
        last = some.pop()
        last.sendall(STATE[5:])
        last.settimeout(0.2)
        with pytest.raises(TimeoutError):
            last.recv(1)
        some[0].close()
        last.settimeout(20)
        assert last.recv(1) == b"{"


def test_a_process_without_descriptors_serves_again_when_it_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0.3)  # of a second
    with serving(tmp_path / "tuner.sock") as server, socket.socket(socket.AF_UNIX) as client:
        were = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, were[1]))
        try:
            client.connect(str(server.path))
            client.sendall(STATE)
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, were)
        client.settimeout(20)
        assert json.loads(client.recv(2**16))["ok"]


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\n", b"{}\n", b'{"ok": true}\n']
)
def test_what_answers_otherwise_is_no_live_server(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "other.sock"
    with answering(path, lambda _: answer), pytest.raises(InputError):
        control_client.state(path)


def test_numbers_of_a_busy_engine_are_told_all_the_same(tmp_path: Path) -> None:
    numbers = Numbers(running=20, waiting=3, busy=True)
    with serving(tmp_path / "tuner.sock", numbers=numbers) as server:
        assert (server.state.running, server.state.waiting) == (20, 3)
