"""What is done, refused, recorded and taken back when a live server is asked to change."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_servers import BUILT, DIGEST, Clock, Numbers, Server, audit, said, serving
from tuner.engines.server import control_client
from tuner.engines.server.cap_schedule import CapAt, CapSchedule
from tuner.engines.server.peer import Peer
from tuner.engines.server.protocol import (
    VERSION,
    Answer,
    ClearSchedule,
    Limits,
    PutBack,
    ResetPrefixCache,
    RollBack,
    SetLimits,
    SetSchedule,
    TakeLog,
)
from tuner.errors import EngineError, GateError, InputError, TargetError
from tuner.live.control import socket_files


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "tuner.sock") as served:
        yield served


def put(server: Server, cap: int, **more: Any) -> Answer:  # noqa: ANN401 - of SetLimits
    request = SetLimits(version=VERSION, do="set", max_num_seqs=cap, profile=DIGEST, **more)
    return control_client.ask(server.path, request)


def keep(server: Server, **caps: int) -> Answer:
    """``at_07=16`` lets 16 hold from 07:00 UTC on."""
    entries = [
        CapAt(at=f"{name[3:5]}:00", max_num_seqs=cap, max_num_batched_tokens=None, profile=DIGEST)
        for name, cap in caps.items()
    ]
    schedule = CapSchedule(zone="UTC", caps=entries)
    return control_client.ask(
        server.path, SetSchedule(version=VERSION, do="schedule", schedule=schedule)
    )


def roll_back(server: Server) -> Answer:
    return control_client.ask(server.path, RollBack(version=VERSION, do="rollback"))


def put_back(server: Server, name: str) -> Answer:
    return control_client.ask(server.path, PutBack(version=VERSION, do="put_back", of=name))


def clear(server: Server) -> Answer:
    return control_client.ask(server.path, ClearSchedule(version=VERSION, do="clear_schedule"))


def pass_time(server: Server, text: str) -> None:
    """Set the clock, and let the server's thread look at it, which it does before every wait."""
    server.clock.set(text)
    control_client.state(server.path)


def test_a_change_holds_and_is_on_record(server: Server) -> None:
    answer = put(server, 16, reason="peak is over", override=["another driver"])
    assert (answer.changed, answer.before, server.cap) == (True, BUILT, 16)
    started, changed = server.audit
    assert started["event"] == "started"
    assert changed == {
        "when": "2026-11-20T12:00:00.000+00:00",
        "event": "set",
        "uid": os.geteuid(),
        "pid": os.getpid(),
        "server_pid": 1,
        "rank": 0,
        "before": {"max_num_seqs": 32, "max_num_batched_tokens": 8192},
        "after": {"max_num_seqs": 16, "max_num_batched_tokens": 8192},
        "profile": DIGEST,
        "schedule": None,
        "reason": "peak is over",
        "override": ["another driver"],
    }


def test_the_same_change_again_changes_nothing_and_is_not_on_record(server: Server) -> None:
    assert put(server, 16).changed
    assert not put(server, 16).changed
    assert len(server.audit) == 2


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"cap": 33}, "max_num_seqs 33 is more than the 32 that the server was built for"),
        ({"cap": 8, "max_num_batched_tokens": 8193}, "max_num_batched_tokens 8193 is more than"),
        ({"cap": 8, "max_num_batched_tokens": 7}, "max_num_batched_tokens 7 is less than the 8"),
    ],
)
def test_what_the_server_was_not_built_for_is_refused(
    server: Server, asked: dict[str, Any], why: str
) -> None:
    with pytest.raises(GateError, match=why):
        put(server, **asked)
    assert (server.cap, len(server.audit)) == (32, 1)


def test_a_model_that_needs_the_whole_budget_keeps_it(tmp_path: Path) -> None:
    with serving(tmp_path / "tuner.sock", numbers=Numbers(least_tokens=8192)) as server:
        with pytest.raises(GateError, match="8192 that this model needs"):
            put(server, 8, max_num_batched_tokens=4096)
        assert put(server, 8).changed


def test_a_change_decided_on_what_no_longer_holds_is_refused(server: Server) -> None:
    seen = server.state.revision
    put(server, 16)
    with pytest.raises(GateError, match="changed meanwhile"):
        put(server, 8, revision=seen)
    assert server.cap == 16


def test_what_is_measured_is_changed_and_forgotten_only_while_nobody_is_served(
    server: Server,
) -> None:
    reset = ResetPrefixCache(version=VERSION, do="reset_prefix_cache")
    server.numbers.waiting = 1
    with pytest.raises(GateError, match="running or waiting"):
        put(server, 16, idle=True)
    with pytest.raises(GateError, match="running or waiting"):
        control_client.ask(server.path, reset)
    assert (server.cap, server.numbers.resets) == (32, 0)
    server.numbers.waiting = 0
    assert put(server, 16, idle=True).changed
    control_client.ask(server.path, reset)
    assert (server.cap, server.numbers.resets) == (16, 1)


def test_the_log_is_taken_part_by_part_and_nobody_needs_a_record_of_it(server: Server) -> None:
    server.numbers.rows = ["AA==", "Ag=="]
    take = TakeLog(version=VERSION, do="take_log", go_on=True)
    logs = [control_client.ask(server.path, take).log for _ in range(2)]
    assert [(one.rows, one.more) for one in logs if one] == [("AA==", True), ("Ag==", False)]
    assert [entry["event"] for entry in server.audit] == ["started"]


def test_changes_are_rolled_back_one_by_one(server: Server) -> None:
    put(server, 16)
    put(server, 8, max_num_batched_tokens=4096)
    assert roll_back(server).changed
    assert server.numbers.set == Limits(max_num_seqs=16, max_num_batched_tokens=8192)
    roll_back(server)
    assert server.cap == 32
    with pytest.raises(GateError, match="no change to take back"):
        roll_back(server)
    assert [entry["event"] for entry in server.audit] == [
        *("started", "set", "set", "rollback", "rollback"),
    ]


def test_the_latest_change_is_put_back_also_when_it_was_a_roll_back(server: Server) -> None:
    put(server, 16, id="a")
    control_client.ask(server.path, RollBack(version=VERSION, do="rollback", id="b"))
    assert put_back(server, "b").changed
    assert server.cap == 16
    for name in ("a", "b"):
        with pytest.raises(GateError, match="the last change since the server was started is ano"):
            put_back(server, name)
    roll_back(server)  # as if nothing had been
    assert server.cap == 32


def test_no_change_is_put_back_but_the_one_that_is_named(server: Server) -> None:
    put(server, 16, id="ours")
    put(server, 8)
    for name in ("ours", "x"):
        with pytest.raises(GateError, match="is another one"):
            put_back(server, name)
    assert server.cap == 8


def test_a_restarted_server_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "tuner.sock"
    with serving(path) as server:
        seen = server.state.revision
        put(server, 16, id="ours")
    with serving(path) as server:
        assert server.state.revision != seen
        with pytest.raises(GateError, match="the server has been restarted meanwhile"):
            put(server, 8, revision=seen)
        put(server, 4)
        with pytest.raises(GateError, match="is another one"):
            put_back(server, "ours")
        assert server.cap == 4


def test_a_change_is_not_made_for_somebody_who_has_left_before_it_is(server: Server) -> None:
    """The disk, on which it goes on record before, may take longer than anybody waits."""
    left = Peer(7, 8, lambda: True)
    control = server.control
    request = b'{"version": 2, "do": "set", "max_num_seqs": 16, "profile": "%s"}' % DIGEST.encode()
    answer = json.loads(control.answer(request, left))
    assert (answer["ok"], answer["error"]) == (False, "whoever asked had left")
    schedule = {"at": "00:00", "max_num_seqs": 8, "max_num_batched_tokens": None, "profile": DIGEST}
    asked = {"version": 2, "do": "schedule", "schedule": {"zone": "UTC", "caps": [schedule]}}
    assert not json.loads(control.answer(json.dumps(asked).encode(), left))["ok"]
    assert (server.cap, server.state.schedule) == (32, None)
    assert not server.path.with_name("tuner.sock.schedule.json").exists()
    events = [(entry["event"], entry["reason"]) for entry in server.audit[2::2]]
    assert events == 2 * [("not done", "the line before: whoever asked had left")]


def test_a_request_of_another_version_is_told_which_one_is_spoken(server: Server) -> None:
    answer = said(server.path, b'{"version": 1, "do": "rollback"}\n')
    assert answer["error"] == "the request is of version 1, and this server speaks 2"
    assert (answer["ok"], answer["kind"]) == (False, "request")


def test_nothing_changes_that_cannot_be_recorded(server: Server) -> None:
    path = Path(server.state.audit)
    path.rename(path.with_name("aside"))
    path.mkdir()
    with pytest.raises(EngineError, match="is a directory"):
        put(server, 16)
    with pytest.raises(EngineError, match="is a directory"):
        keep(server, at_07=16)
    assert server.cap == 32
    assert not (server.path.parent / "tuner.sock.schedule.json").exists()
    assert "is a directory" in (server.state.problem or "")
    path.rmdir()
    put(server, 16)
    assert server.state.problem is None


def test_a_line_that_does_not_fit_on_the_disk_is_left_out_whole(tmp_path: Path) -> None:
    at = socket_files.place(str(tmp_path / "tuner.sock"), rank=0, audit=None)
    socket_files.append(at, {"event": "started"})
    whole = at.audit.read_bytes()
    were = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 5, were[1]))
    try:
        with pytest.raises(TargetError, match="no space left"):
            socket_files.append(at, {"event": "set"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, were)
    assert at.audit.read_bytes() == whole


def test_a_change_that_the_engine_has_no_time_for_is_on_record_as_not_done(server: Server) -> None:
    server.numbers.busy = True
    with pytest.raises(EngineError, match="busy"):
        put(server, 16)
    assert server.cap == 32
    assert [entry["event"] for entry in server.audit] == ["started", "set", "not done"]
    assert server.audit[-1]["after"]["max_num_seqs"] == 32


def test_a_line_that_a_crash_has_cut_does_not_spoil_the_next_one(server: Server) -> None:
    path = Path(server.state.audit)
    with path.open("a") as stream:
        stream.write('{"when": "2026')
    put(server, 16)
    assert json.loads(path.read_text().splitlines()[-1])["event"] == "set"


# -- schedules


def test_a_schedule_sets_what_holds_now_and_turns_when_it_is_time(server: Server) -> None:
    keep(server, at_07=16, at_22=8)
    assert server.cap == 16
    ahead = server.state.next
    assert ahead is not None
    assert (ahead.begins, ahead.max_num_seqs) == ("2026-11-20T22:00:00+00:00", 8)
    pass_time(server, "2026-11-20T22:00:00+00:00")
    assert server.cap == 8
    pass_time(server, "2026-11-21T07:00:01+00:00")
    assert server.cap == 16
    turns = [one for one in server.audit if one["event"] == "turn"]
    assert [one["after"]["max_num_seqs"] for one in turns] == [8, 16]
    assert turns[0]["reason"] == "22:00 by schedule"


def test_a_change_by_hand_holds_until_the_next_turn(server: Server) -> None:
    keep(server, at_07=16, at_22=8)
    put(server, 4)
    pass_time(server, "2026-11-20T21:59:59+00:00")
    assert server.cap == 4
    pass_time(server, "2026-11-20T22:00:00+00:00")
    assert server.cap == 8


def test_a_restarted_server_takes_its_schedule_up(tmp_path: Path) -> None:
    path, clock = tmp_path / "tuner.sock", Clock()
    with serving(path, clock=clock) as server:
        keep(server, at_07=16, at_22=8)
    clock.set("2026-11-20T23:00:00+00:00")
    with serving(path, clock=clock) as server:
        assert server.state.schedule is not None
        assert server.cap == 8
    started, turn = audit(path)[-2:]
    assert (started["event"], turn["event"]) == ("started", "turn")
    assert [cap["max_num_seqs"] for cap in started["schedule"]["caps"]] == [16, 8]


def test_a_server_that_was_built_smaller_says_so_and_keeps_its_cap(tmp_path: Path) -> None:
    path, small = tmp_path / "tuner.sock", Limits(max_num_seqs=8, max_num_batched_tokens=8192)
    with serving(path) as server:
        keep(server, at_07=16, at_22=8)
    with serving(path, numbers=Numbers(built=small, set=small)) as server:
        assert server.state.schedule is None
        assert "not taken up: max_num_seqs 16 is more than the 8" in (server.state.problem or "")
        assert server.cap == 8
        clear(server)
    with serving(path, numbers=Numbers(built=small, set=small)) as server:
        assert server.state.problem is None


@pytest.mark.parametrize("kept", [b"", b"{", b"\xff", b'{"zone": "UTC"}', b"[" * 9999])
def test_a_schedule_that_was_tampered_with_is_not_taken_up(tmp_path: Path, kept: bytes) -> None:
    path = tmp_path / "tuner.sock"
    path.with_name("tuner.sock.schedule.json").write_bytes(kept)
    with serving(path) as server:
        assert "not taken up" in (server.state.problem or "")
        assert put(server, 16).changed


def test_a_schedule_is_ended_and_that_is_taken_back(server: Server) -> None:
    keep(server, at_07=16, at_22=8)
    clear(server)
    assert (server.state.schedule, server.cap) == (None, 16)
    server.clock.set("2026-11-20T23:00:00+00:00")
    roll_back(server)
    assert server.state.schedule is not None
    assert server.cap == 8  # what it says now


def test_a_schedule_is_taken_back_only_while_its_first_cap_holds(server: Server) -> None:
    keep(server, at_07=16, at_22=8)
    roll_back(server)
    assert (server.state.schedule, server.cap) == (None, 32)
    keep(server, at_07=16, at_22=8)
    pass_time(server, "2026-11-20T22:00:00+00:00")
    with pytest.raises(GateError, match="the schedule has changed the limits"):
        roll_back(server)


def test_a_turn_that_cannot_be_made_is_tried_again(server: Server) -> None:
    keep(server, at_07=16, at_22=8)
    server.numbers.busy = True
    pass_time(server, "2026-11-20T22:00:00+00:00")
    assert (server.cap, server.state.problem) == (16, "22:00 8: the engine is busy")
    server.numbers.busy = False
    pass_time(server, "2026-11-20T22:00:30+00:00")
    assert (server.cap, server.state.problem) == (8, None)


def test_a_schedule_with_one_cap_too_many_is_refused_as_a_whole(server: Server) -> None:
    with pytest.raises(GateError, match="max_num_seqs 64 is more than the 32"):
        keep(server, at_07=64, at_22=8)
    assert (server.cap, server.state.schedule) == (32, None)


# -- requests that are none


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00\xff\xfe",
        b"{}",
        b"[]",
        b'"state"',
        b"[" * 60000,
        b'{"version": 2, "do": "state", "do": "rollback"}',
        b'{"version": 3, "do": "state"}',
        b'{"version": true, "do": "state"}',
        b'{"version": "2", "do": "state"}',
        b'{"do": "state"}',
        b'{"version": 2, "do": "put_back"}',
        b'{"version": 2, "do": "state", "extra": 1}',
        b'{"version": 2, "do": "stop"}',
        b'{"version": 2, "do": "set", "max_num_seqs": NaN, "profile": "x"}',
        b'{"version": 2, "do": "set", "max_num_seqs": 0, "profile": "sha256:%064d"}' % 0,
        b'{"version": 2, "do": "set", "max_num_seqs": -1, "profile": "sha256:%064d"}' % 0,
        b'{"version": 2, "do": "set", "max_num_seqs": 8.0, "profile": "sha256:%064d"}' % 0,
        b'{"version": 2, "do": "set", "max_num_seqs": true, "profile": "sha256:%064d"}' % 0,
        b'{"version": 2, "do": "set", "max_num_seqs": "8", "profile": "sha256:%064d"}' % 0,
        b'{"version": 2, "do": "set", "max_num_seqs": 8, "profile": "../x"}',
        b'{"version": 2, "do": "set", "max_num_seqs": 1' + b"0" * 5000 + b"}",
    ],
)
def test_what_is_no_request_is_answered_and_changes_nothing(server: Server, line: bytes) -> None:
    answer = said(server.path, line + b"\n")
    assert (answer["ok"], answer["kind"]) == (False, "request")
    assert answer["error"]
    assert answer["hint"]
    assert (server.cap, len(server.audit)) == (32, 1)


def test_a_reason_adds_no_line_to_the_audit(server: Server) -> None:
    put(server, 16, reason='x\n{"event": "set", "uid": 0}\r\u2028')
    assert [entry["event"] for entry in server.audit] == ["started", "set"]
    with pytest.raises(ValueError, match="500"):
        put(server, 8, reason="x" * 501)


def test_what_is_asked_of_a_server_that_is_gone_fails_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tuner.sock"
    with pytest.raises(InputError, match="no such socket"):
        control_client.state(path)
    path.write_text("")
    with pytest.raises(InputError, match="is no socket"):
        control_client.state(path)


def test_a_server_loads_nothing_heavy_with_the_control() -> None:
    code = "import sys, tuner.live.control.thread; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "pydantic" in loaded  # which vLLM brings
    foreign = {"numba", "numpy", "pynvml", "rich", "typer", "vllm", "yaml"}
    assert foreign & {name.split(".")[0] for name in loaded} == set()
    assert [
        name
        for name in loaded
        if name.startswith(("tuner.capture", "tuner.trace.formats.registry"))
    ] == []
