from pathlib import Path

import pytest

from tests.support.format_examples import EXAMPLES, jsonl, read
from tuner.errors import TraceError
from tuner.trace.formats.reading.refused import LOOKALIKES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0,1.5,1.1,Gamma,0.8,0.6\n600,2.5,1.0,Weibull,0.9,0.3\n", "a ServeGen rate file"),
        ("600,1.5,1.1,,0.8,0.6\n", "a ServeGen rate file"),
        ('{"0": {"input_tokens": "{1: 0.5}", "output_tokens": "{2: 1.0}"}}', "ServeGen length"),
        ("time_sec,concurrency\n0,4\n60,16\n", "a concurrency schedule"),
        (jsonl({"time_sec": 0, "concurrency": 4}), "a concurrency schedule"),
        ('[{"time_sec": 0, "concurrency": 4}]', "a concurrency schedule"),
        (jsonl({"prompt": "", "output_tokens": 10}), "prompts without arrival times"),
        ('[{"id": "x", "conversations": []}]', "prompts without arrival times"),
    ],
)
def test_what_can_be_no_trace_is_refused_by_name_with_what_to_do_instead(
    tmp_path: Path, content: str, message: str
) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read(tmp_path / "t", content, None)
    assert str(caught.value).startswith(str(tmp_path / "t"))
    assert caught.value.hint


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_trace_is_refused_for_what_it_is_not(name: str) -> None:
    assert [one.what for one in LOOKALIKES if one.sniff(EXAMPLES[name].encode())] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [{"traceID": "a", "spans": []}]}', "spans, but not as OTLP/JSON"),
        ('{"batches": [{"scopeSpans": []}]}', "spans, but not as OTLP/JSON"),
        (
            '{\n "context": {"trace_id": "0x1"},\n "parent_id": null,\n "start_time": "x"\n}',
            "spans, but not as OTLP/JSON",
        ),
        ('{"data": [{"session_id": "a", "payloads": []}]}', "prompts without arrival times"),
        (jsonl({"metadata": {"request_start_ns": 1}, "metrics": {}}), "a load generator"),
        ('{"metadata": {}, "benchmarks": [{"requests": {}}]}', "a load generator"),
        ("t,prompt_throughput,running,waiting\n1.0,3392.0,5,2\n", "a series of gauges"),
        (jsonl({"log": "{}\n", "stream": "stdout", "time": "x"}), "the log of a container"),
        ("2026-11-21T10:00:00.1Z stdout F {}\n", "the log of a container"),
        ('1.1.1.1 - - [21/Nov/2026:10:01:13 +0000] "POST /v1 HTTP/1.1" 200 1\n', "an access log"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:a\n", "a pointer of Git LFS"),
        ("<!DOCTYPE html><html></html>", "a page of HTML"),
    ],
)
def test_what_people_have_instead_of_a_trace_is_named_with_its_cure(
    tmp_path: Path, content: str, message: str
) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read(tmp_path / "t", content, None)
    assert caught.value.hint


@pytest.mark.parametrize(
    "beside",
    [
        {"trace_id": "a", "span_id": "b"},
        {"turns": 3},
        {"metadata": {"user": "u"}, "metrics": {"tokens": 8}},
        {"response_code": 200, "duration": 900},
    ],
)
def test_what_looks_like_another_file_by_one_key_is_read_as_the_table_that_it_is(
    tmp_path: Path, beside: dict[str, object]
) -> None:
    request = {"start_time": "2026-11-21T10:00:00Z", "tokens": {"input": 3, "output": 5}}
    rows, _ = read(tmp_path / "t", jsonl(request | beside), None)
    assert [(row.input_length, row.output_length) for row in rows] == [(3, 5)]


@pytest.mark.parametrize(
    ("begins", "says"),
    [
        (b"\x1f\x8b", "packed data breaks off or is damaged"),
        (b"\x28\xb5\x2f\xfd", "packed data breaks off or is damaged"),
        (b"\xfd7zXZ\x00", "packed data breaks off or is damaged"),
        (b"PAR1", "a broken Parquet or Arrow file"),
        (b"\xff\xfe{\x00", "not a trace format"),
    ],
)
def test_a_packed_file_that_is_damaged_is_refused(tmp_path: Path, begins: bytes, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        read(tmp_path / "t", begins + b"x" * 40, None)
