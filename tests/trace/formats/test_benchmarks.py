"""Formats of benchmarks: vLLM's, GuideLLM's, LLMServingSim's, and SwissAI's serving trace."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.format_examples import EXAMPLES, jsonl, read
from tests.support.traces import SLICES, needs_slices
from tuner.errors import TraceError, UsageError
from tuner.trace.columns import columns_of
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.header import TimeUnit
from tuner.trace.trace import load
from tuner.traffic.concurrency import levels


@pytest.mark.parametrize(("name", "block_size"), [("guidellm", 512), ("timed_trace", 16)])
def test_named_replay_files_are_in_s(tmp_path: Path, name: str, block_size: int) -> None:
    rows, tally = read(tmp_path / "t", EXAMPLES[name], name)
    assert rows[1].timestamp == 1500
    assert tally.notes == []
    assert open_trace(tmp_path / "t", format_name=name)[0].header.block_size == block_size


@pytest.mark.parametrize("name", ["guidellm", "timed_trace"])
@pytest.mark.parametrize(("unit", "factor"), [("s", 1000), ("ms", 1)])
def test_a_named_unit_is_believed(tmp_path: Path, name: str, unit: TimeUnit, factor: int) -> None:
    rows, _ = read(tmp_path / "t", EXAMPLES[name], name, time_unit=unit)
    assert rows[1].timestamp == 1.5 * factor


@pytest.mark.parametrize("name", ["guidellm", "timed_trace"])
def test_a_replay_file_that_is_not_named_must_name_its_unit(tmp_path: Path, name: str) -> None:
    with pytest.raises(TraceError, match="may be s or ms") as caught:
        read(tmp_path / "t", EXAMPLES[name], None)
    assert "--time-unit" in caught.value.hint


def test_a_duration_is_when_the_request_ended(tmp_path: Path) -> None:
    rows, _ = read(tmp_path / "t", EXAMPLES["guidellm"], "guidellm")
    assert [row.e2e_ms for row in rows] == [None, 2000]


def test_ids_for_longer_blocks_than_usual_are_known_by_their_number(tmp_path: Path) -> None:
    text = jsonl(
        {"timestamp": 0, "input_length": 6755, "output_length": 5, "hash_ids": [*range(14)]},
        {"timestamp": 1, "input_length": 600, "output_length": 5, "hash_ids": [0, 20]},
    )
    rows, tally = read(tmp_path / "t", text, "timed_trace")
    assert len(rows[0].hash_ids) == 14
    assert tally.notes == ["hash_ids are taken for 512 tokens each, by their number"]
    assert open_trace(tmp_path / "t", format_name="timed_trace")[0].header.block_size == 512


def test_mooncake_rows_with_shorter_blocks_are_known_by_their_number(tmp_path: Path) -> None:
    text = jsonl({"timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [1, 2, 3]})
    assert read(tmp_path / "t", text, None)[1].dropped == {}
    source, _ = open_trace(tmp_path / "t")
    assert source.header.block_size == 16


def test_clocks_are_aligned_by_the_request_that_was_queued_soonest(tmp_path: Path) -> None:
    """Queued 50.5 for 1000 and 51 for 1001: the monotonic clock is 950 behind."""
    rows, tally = read(tmp_path / "t", EXAMPLES["llmservingsim"], None)
    assert [row.timestamp for row in rows] == [1_000_000, 1_001_000]
    assert [row.e2e_ms for row in rows] == [2000, 2000]
    assert [row.ttft_ms for row in rows] == [1000, 500]
    assert [row.queue_ms for row in rows] == [250, 0]
    assert tally.dropped == {}


def test_a_request_that_never_ended_has_no_end(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in EXAMPLES["llmservingsim"].splitlines()]
    lines[0]["last_token_ts"] = None
    lines[1] |= {"queued_ts": "x", "output_toks": None}
    rows, tally = read(tmp_path / "t", jsonl(*lines), None)
    assert [row.e2e_ms for row in rows] == [None]
    assert tally.dropped == {"no_tokens": 1}


@needs_slices
@pytest.mark.parametrize(
    ("gpu", "expected"),
    [("RTX4090", (148.55, 155, 252, 268, 272)), ("RTXPRO6000", (142.82, 155, 226, 230, 232))],
)
def test_the_public_records_of_vllm_say_how_many_ran_at_a_time(
    gpu: str, expected: tuple[float, ...]
) -> None:
    trace = load(SLICES / f"vllmbench_{gpu}_Llama-3.1-8B_requests.jsonl")
    assert trace.warnings == ()
    assert len(trace.requests) == 300
    columns = columns_of(trace.requests, block_size=16)
    start_s, end_s = columns.arrival_s[[0, -1]].tolist()
    found = levels(columns, columns.e2e_s, start_s=start_s, end_s=end_s)
    assert found is not None
    held = found.held()
    assert (round(held.mean(), 2), *held.quantiles(0.5, 0.95, 0.99), held.max()) == expected


def result(**changes: object) -> str:
    return json.dumps({**json.loads(EXAMPLES["vllm_bench"]), **changes})


def test_a_detailed_result_says_when_requests_were_due(tmp_path: Path) -> None:
    """The second was sent at 102 after 2 s of waiting in the client."""
    (ok, failed), tally = read(tmp_path / "t", EXAMPLES["vllm_bench"], None)
    assert (ok.timestamp, failed.timestamp) == (100_000, 100_000)
    assert (ok.input_length, ok.output_length, ok.e2e_ms, ok.ttft_ms) == (10, 3, 1000, 500)
    assert (failed.status, failed.e2e_ms, failed.ttft_ms) == ("error", None, None)
    assert tally.notes == [
        "the client kept at most 1 requests in flight: arrivals are when requests were due"
    ]
    trace = load(tmp_path / "t")
    assert [one.arrival_s for one in trace.requests] == [0, 0]
    assert (trace.header.model, trace.header.time_origin) == ("m", None)


def test_latencies_beat_the_sum_of_gaps(tmp_path: Path) -> None:
    (ok, _), _ = read(tmp_path / "t", result(latencies=[1.25, 0]), None)
    assert ok.e2e_ms == 1250


def test_the_servers_own_queue_comes_after_the_clients(tmp_path: Path) -> None:
    """Of vLLM 0.33: the first waited 0.1 s in the server, and none in the client."""
    (ok, failed), _ = read(tmp_path / "t", result(server_queue_times=[0.1, None]), None)
    assert (ok.queue_ms, failed.queue_ms) == (100, None)
    waited = result(server_queue_times=[0.1, None], queue_times=[2.0, 0])
    assert read(tmp_path / "t", waited, None)[0][0].queue_ms == 2100


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ([0.375, None], ["TTFT is the client's: at the median 125 ms more than the server's own"]),
        ([None, None], []),
        (["0.375", 0.25], []),
    ],
)
def test_where_servers_tell_their_own_ttft_it_is_said_how_much_the_network_adds(
    tmp_path: Path, servers: list[object], said: list[str]
) -> None:
    """Of vLLM 0.33. The client of the first had its first token after 0.5 s; the second failed."""
    (ok, _), tally = read(tmp_path / "t", result(server_ttfts=servers), None)
    assert tally.notes[1:] == said
    assert ok.ttft_ms == 500


@pytest.mark.parametrize("lists", [{"itls": []}, {"ttfts": []}, {"itls": [5, []]}])
def test_without_gaps_there_are_no_ends(tmp_path: Path, lists: dict[str, Any]) -> None:
    (ok, _), _ = read(tmp_path / "t", result(**lists), None)
    assert ok.e2e_ms is None


def test_a_result_with_answers_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    text = result(generated_texts=["secret", ""])
    with pytest.raises(TraceError, match=r"t:1: holds text \(generated_texts\)"):
        read(tmp_path / "t", text, None)
    assert len(read(tmp_path / "t", text, None, allow_text=True)[0]) == 2


def test_what_is_no_number_in_json_stands_in_the_way_of_nothing(tmp_path: Path) -> None:
    text = EXAMPLES["vllm_bench"].replace('"inf"', "Infinity").replace('"completed": 1', '"x": NaN')
    assert len(read(tmp_path / "t", text, None)[0]) == 2


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (result(start_times=[]), "no start_times", "--save-detailed"),
        (json.dumps({"tokenizer_id": "m", "num_prompts": 9}), "no start_times, input", "detailed"),
        (result(errors=[""]), "errors has 1 entries, start_times 2", "complete"),
        (EXAMPLES["vllm_bench"] + "\n" + EXAMPLES["vllm_bench"], "trailing", "--append-result"),
        (EXAMPLES["vllm_bench"][:-20], "truncated", "One result a file"),
        (result(model_id=5), "model_id", "One result a file"),
    ],
)
def test_a_result_that_is_not_whole_or_not_detailed_is_refused(
    tmp_path: Path, text: str, message: str, hint: str
) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read(tmp_path / "t", text, None)
    assert hint in caught.value.hint


def test_single_bad_entries_are_counted(tmp_path: Path) -> None:
    text = result(start_times=[None, 1.0], output_lens=[3, "x"])
    with pytest.raises(TraceError, match="none of 2 rows can be used"):
        read(tmp_path / "t", text, None)


def test_a_document_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.trace.formats.reading.trace_file.MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(TraceError, match="one JSON document of more than"):
        read(tmp_path / "t", EXAMPLES["vllm_bench"], None)


def test_swissai_counts_of_minus_1_are_unknown_and_errors_are_kept(tmp_path: Path) -> None:
    (ok, failed), tally = read(tmp_path / "t", EXAMPLES["swissai"], None)
    assert failed.timestamp - ok.timestamp == 500
    assert (ok.input_length, ok.output_length, ok.e2e_ms, ok.max_tokens) == (40, 38, 1500, 256)
    assert (ok.model, failed.model) == ("Qwen/Qwen3-32B", None)
    assert (failed.status, failed.input_length, failed.e2e_ms) == ("error", None, None)
    assert tally.dropped == {}


def test_swissai_buckets_tell_a_prompt_that_was_not_reported(tmp_path: Path) -> None:
    (one, _) = (json.loads(line) for line in EXAMPLES["swissai"].splitlines())
    one |= {"reported_token_input": -1, "token_count": 40, "bucket_ids": [5, 6, 7]}
    (row,), _ = read(tmp_path / "t", jsonl(one), None)
    assert (row.input_length, len(row.hash_ids)) == (40, 2)


def test_swissai_ids_mean_whole_prefixes_of_full_blocks(tmp_path: Path) -> None:
    (one, _) = (json.loads(line) for line in EXAMPLES["swissai"].splitlines())
    other = {**one, "bucket_ids": [5, 9, 9]}
    moved = {**one, "bucket_ids": [9, 9, 5]}
    rows, _ = read(tmp_path / "t", jsonl(one, other, moved), None)
    a, b, c = (row.hash_ids for row in rows)
    assert len(a) == 2
    assert a[0] == b[0] != c[0]
    assert a[1] != b[1] != c[1]
    assert c[0] != c[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"reported_token_output": -1}, "no_tokens"),
        ({"reported_token_input": "null"}, "no_tokens"),
        ({"reported_token_input": -2}, "negative"),
        ({"created_at": "null"}, "no_timestamp"),
        ({"created_at": "today"}, "bad_timestamp"),
        ({"finished_at": "2024-03-01T10:00:02.000Z"}, "bad_field"),
    ],
)
def test_swissai_rows_that_cannot_be_used_are_counted(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    one, _ = (json.loads(line) for line in EXAMPLES["swissai"].splitlines())
    rows, tally = read(tmp_path / "t", jsonl(one, {**one, **changes}), None)
    assert len(rows) == 1
    assert tally.dropped == {reason: 1}


@pytest.mark.parametrize("name", ["llmservingsim", "vllm_bench", "swissai"])
def test_the_unit_is_no_question(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="the stamps are"):
        read(tmp_path / "t", EXAMPLES[name], name, time_unit="ms")
