"""Formats of conversations: WEKA's and TraceLab's agents, Bailian's chats, aiperf's sessions."""

import json
from pathlib import Path

import pytest

from tests.support.format_examples import EXAMPLES, jsonl, read
from tests.support.traces import SLICES, needs_slices
from tuner.errors import TraceError, UsageError
from tuner.trace.formats import weka
from tuner.trace.formats.aiperf import ACCUMULATED, DELAYED
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.recent import Recent
from tuner.trace.formats.weka import LAID_OVER


def conversation(*requests: dict[str, object], **more: object) -> dict[str, object]:
    return {
        "id": "c",
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        **more,
        "requests": [{"type": "n", "model": "m", "in": 64, "out": 5, **one} for one in requests],
    }


def test_bailian_is_in_s_and_a_parent_of_minus_1_is_none(tmp_path: Path) -> None:
    (root, turn), tally = read(tmp_path / "t", EXAMPLES["bailian"], None)
    assert (root.timestamp, turn.timestamp) == (61_114, 70_500)
    assert (root.request_id, root.parent_id, root.session_id, root.turn) == (159, None, 159, 0)
    assert (turn.request_id, turn.parent_id, turn.session_id, turn.turn) == (160, 159, 159, 1)
    assert root.hash_ids == (1089, 1090, 1091)
    assert tally.dropped == {}
    assert open_trace(tmp_path / "t")[0].header.block_size == 16


def test_a_bailian_chat_whose_parent_came_before_the_file_is_named_by_it(tmp_path: Path) -> None:
    chat = {"timestamp": 1.0, "input_length": 9, "output_length": 1, "turn": 3}
    text = jsonl(
        {"chat_id": 2, "parent_chat_id": 1, **chat}, {"chat_id": 3, "parent_chat_id": 2, **chat}
    )
    rows, _ = read(tmp_path / "t", text, None)
    assert [row.session_id for row in rows] == [1, 1]


def test_an_aiperf_turn_adds_to_what_came_before_and_waits_for_it(tmp_path: Path) -> None:
    (first, second, alone), tally = read(tmp_path / "t", EXAMPLES["aiperf"], None)
    assert (first.timestamp, first.input_length, first.turn) == (1000, 300, 0)
    assert (second.timestamp, second.input_length, second.turn) == (3000.5, 300 + 40 + 150, 1)
    assert (second.request_id, second.parent_id) == ("s0:1", "s0:0")
    assert (alone.timestamp, alone.session_id, alone.hash_ids) == (1500, None, (1, 2))
    assert tally.notes == [DELAYED, ACCUMULATED]


def test_an_aiperf_stamp_beats_a_delay(tmp_path: Path) -> None:
    row = {"session_id": "a", "input_length": 3, "output_length": 4}
    rows, tally = read(
        tmp_path / "t", jsonl({**row, "timestamp": 0}, {**row, "timestamp": 9, "delay": 1}), None
    )
    assert [one.timestamp for one in rows] == [0, 9]
    assert tally.notes == [ACCUMULATED]


def test_an_aiperf_turn_without_stamp_or_turn_before_has_no_arrival(tmp_path: Path) -> None:
    row = {"session_id": "a", "input_length": 3, "output_length": 4}
    text = jsonl({**row, "delay": 5}, {**row, "timestamp": 1})
    rows, tally = read(tmp_path / "t", text, None)
    assert [one.timestamp for one in rows] == [1]
    assert tally.dropped == {"no_timestamp": 1}


@pytest.mark.parametrize(
    "said",
    [
        {"text_input": "secret"},
        {"messages": [{"role": "user", "content": "secret"}]},
        {"payload": {"prompt": "secret"}},
    ],
)
def test_aiperf_rows_with_text_are_refused_unless_told_otherwise(
    tmp_path: Path, said: dict[str, object]
) -> None:
    text = jsonl(
        {"timestamp": 0, "session_id": "a", "input_length": 5, "output_length": 4},
        {"timestamp": 1, "output_length": 4, **said},
    )
    with pytest.raises(TraceError, match=r"t:2: holds text \(") as caught:
        read(tmp_path / "t", text, None)
    assert "--allow-text" in caught.value.hint
    assert "secret" not in str(caught.value)
    rows, tally = read(tmp_path / "t", text, None, allow_text=True)
    assert len(rows) == 1
    assert tally.dropped == {"no_tokens": 1}


def test_weka_requests_become_turns_and_those_of_subagents_too(tmp_path: Path) -> None:
    (first, inner, last), tally = read(tmp_path / "t", EXAMPLES["weka"], None)
    assert [one.timestamp for one in (first, inner, last)] == [0, 2500, 9000]
    assert [one.turn for one in (first, inner, last)] == [0, 1, 2]
    assert {one.session_id for one in (first, inner, last)} == {"s0"}
    assert (inner.parent_id, last.parent_id) == ("s0:0", "s0:0")
    assert (first.e2e_ms, inner.ttft_ms) == (1500, 250)
    assert (first.stream, inner.stream) == (False, True)
    assert first.hash_ids[:2] == last.hash_ids[:2]
    assert tally.notes == []


def test_weka_ids_are_those_of_the_conversation(tmp_path: Path) -> None:
    one = conversation({"t": 0, "hash_ids": [5]}, {"t": 1, "hash_ids": [5]})
    rows, tally = read(tmp_path / "t", jsonl(one, one), None)
    (a, b), (c, d) = ([row.hash_ids for row in rows[:2]], [row.hash_ids for row in rows[2:]])
    assert a == b != c == d
    assert tally.notes == [LAID_OVER]


def test_weka_ids_of_global_scope_are_shared(tmp_path: Path) -> None:
    one = conversation({"t": 0, "hash_ids": [5]}, hash_id_scope="global")
    rows, _ = read(tmp_path / "t", jsonl(one, one, conversation({"t": 0, "hash_ids": [5]})), None)
    assert rows[0].hash_ids == rows[1].hash_ids != rows[2].hash_ids


def test_weka_conversations_on_one_clock_are_no_assumption(tmp_path: Path) -> None:
    text = jsonl(conversation({"t": 0}, {"t": 9}), conversation({"t": 100}))
    assert read(tmp_path / "t", text, None)[1].notes == []


def test_a_weka_turn_that_overlaps_the_one_before_does_not_wait_for_it(tmp_path: Path) -> None:
    text = jsonl(conversation({"t": 0, "api_time": 5}, {"t": 4}, {"t": 6}))
    rows, _ = read(tmp_path / "t", text, None)
    assert [row.parent_id for row in rows] == [None, None, "s0:1"]


def test_weka_stamps_of_a_subagent_may_be_those_of_the_whole(tmp_path: Path) -> None:
    inside = [{"t": 7, "type": "n", "in": 5, "out": 5}]
    whole = conversation({"t": 0}, {"t": 6, "type": "subagent", "requests": inside})
    rows, _ = read(tmp_path / "t", jsonl(whole), None)
    assert [row.timestamp for row in rows] == [0, 7000]


def test_what_is_wrong_in_a_weka_conversation_is_counted(tmp_path: Path) -> None:
    deep: dict[str, object] = {"t": 1, "in": 5, "out": 5}
    for _ in range(weka.MAX_NESTING + 2):
        deep = {"type": "subagent", "t": 0, "requests": [deep]}
    whole = conversation({"t": 0}, {"t": None}, {"t": -1}, {"in": 1.5, "t": 1}, {"out": 0, "t": 1})
    whole["requests"] += [17, deep]  # type: ignore[operator]
    text = jsonl(whole, {"id": "d", "models": [], "requests": 5})
    rows, tally = read(tmp_path / "t", text, None)
    assert len(rows) == 1
    assert tally.dropped == {
        "no_timestamp": 1,
        "before_origin": 1,
        "not_integer": 1,
        "zero_tokens": 1,
        "malformed": 3,
    }


def test_weka_ids_for_other_blocks_are_left_out_and_it_is_said(tmp_path: Path) -> None:
    text = jsonl(
        conversation({"t": 0, "hash_ids": [1]}),
        conversation({"t": 5, "hash_ids": [1, 2, 3, 4]}, block_size=16),
    )
    rows, tally = read(tmp_path / "t", text, None)
    assert [len(row.hash_ids) for row in rows] == [1, 0]
    assert tally.notes == ["conversations of another block_size have no hash_ids"]


def test_a_weka_conversation_may_be_longer_than_a_line_of_other_formats(tmp_path: Path) -> None:
    ids = list(range(1_000_000, 1_700_000))
    whole = conversation({"t": 0, "in": 64 * len(ids), "hash_ids": ids})
    text = json.dumps(whole)
    assert len(text) > 5_000_000
    (row,), _ = read(tmp_path / "t", text, None)
    assert len(row.hash_ids) == len(ids)


def test_a_tracelab_round_begins_with_the_last_of_its_inputs(tmp_path: Path) -> None:
    (row,), tally = read(tmp_path / "t", EXAMPLES["tracelab"], None)
    assert (row.e2e_ms, row.cached_tokens) == (10_000, 27_217)
    assert (row.session_id, row.turn) == ("s0", 0)
    assert tally.dropped == {}


def test_a_tracelab_round_without_inputs_begins_with_the_first_output(tmp_path: Path) -> None:
    (one,) = (json.loads(line) for line in EXAMPLES["tracelab"].splitlines())
    one["timing_events"] = one["timing_events"][2:]
    nothing = {**one, "timing_events": [{"event_type": "text"}]}
    (row,), tally = read(tmp_path / "t", jsonl(one, nothing), None)
    assert row.e2e_ms == 1731
    assert tally.dropped == {"no_timestamp": 1}


@needs_slices
def test_the_public_slice_of_tracelab_is_read_whole() -> None:
    source, tally = open_trace(SLICES / "tracelab_rounds.jsonl")
    rows = list(source.rows)
    assert (tally.rows_read, tally.rows_kept) == (10, 10)
    assert rows[-1].timestamp - rows[0].timestamp == pytest.approx(190_855)
    assert (rows[0].input_length, rows[0].output_length) == (32_272, 931)


@pytest.mark.parametrize("name", ["bailian", "weka", "tracelab"])
def test_the_unit_is_no_question(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="the stamps are"):
        read(tmp_path / "t", EXAMPLES[name], name, time_unit="ms")


def test_of_many_keys_the_last_are_remembered() -> None:
    recent: Recent[int] = Recent(most=2)
    for key in (1, 2, 1, 3):
        recent.put(key, key * 10)
    assert [recent.get(key, 0) for key in (1, 2, 3)] == [10, 0, 30]
    assert recent.get([1], 7) == 7
