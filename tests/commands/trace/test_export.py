import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.commands.trace.test_trace import Run, tuner
from tests.support.places import ROOT
from tests.support.traces import HEADER, SAMPLES, SLICES, needs_slices, row, write_lines
from tuner.trace.formats.opening import open_trace
from tuner.trace.formats.reading.record import Row
from tuner.trace.formats.reading.replayable import Plain, Replayable
from tuner.trace.formats.registry import REPLAY_TOOLS, ReplayTool
from tuner.trace.stream import Input, in_order, scan
from tuner.trace.trace import load

__all__ = ["tuner"]

SAMPLE = SAMPLES / "translation.jsonl"


@dataclass
class Found:
    requests: tuple[Plain, ...]
    of: Replayable

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self.of.notes())


def plain(*rows: Row, block_size: int = 16, wanted: int | None = None) -> Found:
    found = Replayable(rows, block_size=block_size, wanted=wanted)
    return Found(tuple(found.plain()), found)


def ids(found: Found) -> list[tuple[int, ...]]:
    return [one.hash_ids for one in found.requests]


def objects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_requests_count_from_the_first() -> None:
    found = plain(Row(250.5, 6, 2), Row(700, 5, 1))
    assert found.requests == (Plain(0, 6, 2, (0,)), Plain(449.5, 5, 1, (1,)))
    assert (found.of.block_size, found.of.left_out, found.notes) == (16, {}, ())
    assert (found.of.requests, found.of.lasted_ms) == (2, 449.5)


def test_what_was_not_served_is_left_out_and_counted() -> None:
    found = plain(
        Row(0, 5, 1), Row(0, 5, 1, status="error"), Row(0, status="rejected"),
        Row(0, 5, 0, status="aborted"), Row(0, 5, 3, status="aborted"),
    )  # fmt: skip
    assert [one.output_length for one in found.requests] == [1, 3]
    assert found.of.left_out == {"error": 1, "rejected": 1, "aborted without output": 1}
    assert found.notes == ("1 aborted requests become requests of the tokens they got",)


def test_each_of_n_sequences_becomes_a_request_with_the_same_prompt() -> None:
    found = plain(
        Row(0, 20, 9, n=3, output_lengths=(9, 4, 5), hash_ids=(7,)), Row(1, 5, 2, n=2, hash_ids=())
    )
    assert [one.output_length for one in found.requests] == [9, 4, 5, 2, 2]
    assert ids(found) == [(0, 1)] * 3 + [(2,)] * 2
    assert "2 requests with n > 1" in found.notes[0]


def test_there_are_as_many_ids_as_blocks_begun_and_new_ones_where_nothing_is_shared() -> None:
    found = plain(Row(0, 32, 1, hash_ids=(9,)), Row(1, 33, 1), Row(2, 40, 1, hash_ids=(9, 5)))
    assert ids(found) == [(0, 1), (2, 3, 4), (0, 5, 6)]


def test_a_block_that_is_not_full_is_shared_by_prompts_of_one_length_only() -> None:
    """Else a tool would make it as long as the first prompt needs."""
    found = plain(*(Row(at, length, 1, hash_ids=(9, 5)) for at, length in enumerate((20, 21, 20))))
    assert ids(found) == [(0, 1), (0, 2), (0, 1)]


def test_ids_of_small_blocks_become_those_of_large_ones() -> None:
    one = Row(0, 70, 1, hash_ids=(1, 2, 3, 4))
    other = Row(1, 64, 1, hash_ids=(1, 2, 3, 5))
    found = plain(one, other, Row(2, 70, 1, hash_ids=(1, 2, 3, 4)), wanted=32)
    assert ids(found) == [(0, 1, 2), (0, 3), (0, 1, 4)]
    assert found.notes == (
        "prefix sharing is understated: blocks of 16 tokens are told in blocks of 32",
    )


def test_ids_of_large_blocks_become_those_of_small_ones() -> None:
    rows = (Row(0, 40, 1, hash_ids=(1, 2)), Row(1, 32, 1, hash_ids=(1,)))
    found = plain(*rows, block_size=32, wanted=16)
    assert ids(found) == [(0, 1, 2), (0, 1)]
    assert found.notes == ()


def test_ids_that_cannot_be_told_are_lost_and_it_is_said() -> None:
    rows = (Row(0, 48, 1, hash_ids=(1,)), Row(1, 48, 1, hash_ids=(1,)))
    found = plain(*rows, block_size=48, wanted=32)
    assert ids(found) == [(0, 1), (2, 3)]
    assert "prefix sharing is lost" in found.notes[0]


def test_every_row_of_an_export_has_the_four_keys_and_no_header(tuner: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", HEADER, row(1000.4), row(2500.75, hash_ids=[3]))
    for name, stamp in [
        ("mooncake", 1500), ("aiperf", 1500), ("guidellm", 1.50035), ("timed_trace", 1.50035),
    ]:  # fmt: skip
        out = tmp_path / name
        ended = tuner("trace", "export", path, "--format", name, "-o", out)
        assert (ended.code, ended.err) == (0, "")
        first, second = objects(out)
        assert list(first) == ["timestamp", "input_length", "output_length", "hash_ids"]
        assert (first["timestamp"], second["timestamp"]) == (0, stamp)
        assert type(second["timestamp"]) is type(stamp)


@pytest.mark.parametrize("reach", [0, 3, 40, 10_000])
def test_rows_come_in_order_of_arrival_however_far_they_are_out_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reach: int
) -> None:
    monkeypatch.setattr("tuner.trace.formats.reading.byte_chunks.CHUNK_BYTES", 500)
    chance = random.Random(reach)
    made: list[dict[str, Any]] = [
        row(at // 2, input_length=at + 1, session_id=f"s{at % 7}") for at in range(400)
    ]
    for at in range(0, 400, 9):
        made[at]["status"] = "error"
    made.sort(key=lambda one: one["timestamp"] + chance.uniform(0, reach))
    path = write_lines(tmp_path / "t", HEADER, *made)
    file = Input(path)
    batches = list(in_order(file, scan(file, lambda _: None), lambda _: None))
    rows = [one for batch in batches for one in batch.rows()]
    expected = sorted(made, key=lambda one: one["timestamp"])
    assert [(one.timestamp, one.input_length, one.session_id, one.status) for one in rows] == [
        (one["timestamp"], one["input_length"], one["session_id"], one.get("status", "ok"))
        for one in expected
    ]
    if reach < 50:  # then no more are held than are out of order
        assert max(map(len, batches)) < 200


def test_an_export_says_how_to_replay_it(tuner: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", HEADER, row(0), row(5, status="error"))
    for name, words in [
        ("mooncake", "--timed-trace-sec-multiplier 0.001 --timed-trace-chunk-hash-size 512"),
        ("aiperf", "--fixed-schedule --isl-block-size 16"),
        ("guidellm", "hash_id_block_size=16"),
        ("timed_trace", "--timed-trace-chunk-hash-size 16 --num-prompts 1"),
    ]:
        out = tuner("trace", "export", path, "--format", name, "-o", tmp_path / name).out
        assert "1 request over 0.0s" in out
        assert "left out: 1 error" in out
        assert words in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{t}/good", "--format", "azure2023", "-o", "{t}/out"], 2, None),
        (["{t}/good", "--format", "mooncake"], 2, None),
        (["{t}/good", "--format", "mooncake", "-o", "{t}/good"], 3, "already there"),
        (["{t}/nope", "--format", "mooncake", "-o", "{t}/out"], 3, "no such file"),
        (["{t}/failed", "--format", "mooncake", "-o", "{t}/out"], 3, "no request was served"),
    ],
)
def test_what_cannot_be_exported_leaves_no_file(
    tuner: Run, tmp_path: Path, arguments: list[str], code: int, message: str | None
) -> None:
    write_lines(tmp_path / "good", HEADER, row(0))
    write_lines(tmp_path / "failed", HEADER, row(0, status="error"))
    ended = tuner("trace", "export", *(argument.format(t=tmp_path) for argument in arguments))
    assert (ended.code, ended.out) == (code, "")
    assert message is None or message in ended.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("exporter", REPLAY_TOOLS, ids=lambda one: one.NAME)
@pytest.mark.parametrize(
    "path",
    [SAMPLE, pytest.param(SLICES / "mooncake_synthetic.jsonl", marks=needs_slices)],
    ids=["sample", "mooncake"],
)
def test_what_is_exported_is_read_again_as_the_same_traffic(
    tuner: Run, tmp_path: Path, exporter: ReplayTool, path: Path
) -> None:
    tuner("trace", "export", path, "--format", exporter.NAME, "-o", tmp_path / "out")
    served = [one for one in load(path).requests if one.status in ("ok", "aborted")]
    source, tally = open_trace(tmp_path / "out", format_name=exporter.NAME)
    rows = list(source.rows)
    assert tally.dropped == {}
    assert len(rows) == len(served)
    grain_ms = 0.5 if exporter.NAME in ("mooncake", "aiperf") else 0.001
    for one, old in zip(rows, served, strict=True):
        assert (one.input_length, one.output_length) == (old.input_length, old.output_length)
        since_ms = (old.arrival_s - served[0].arrival_s) * 1000
        assert one.timestamp == pytest.approx(since_ms, abs=grain_ms)
        assert len(one.hash_ids) == -(-old.input_length // source.header.block_size)


@needs_slices
def test_a_mooncake_trace_survives_there_and_back(tuner: Run, tmp_path: Path) -> None:
    path = SLICES / "mooncake_synthetic.jsonl"
    tuner("trace", "export", path, "--format", "mooncake", "-o", tmp_path / "out")
    assert objects(tmp_path / "out") == objects(path)


@pytest.mark.vllm
@pytest.mark.parametrize("name", ["timed_trace", "mooncake"])
def test_vllms_own_reader_makes_prompts_of_the_right_lengths_and_prefixes(
    tuner: Run, tmp_path: Path, name: str
) -> None:
    from vllm.benchmarks.datasets.datasets import (  # noqa: PLC0415
        TimedTrace,
        add_dataset_parser,
    )
    from vllm.tokenizers import get_tokenizer  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    shared: list[dict[str, object]] = [
        {"hash_ids": [1, 2], "input_length": length} for length in (40, 41, 1040)
    ]
    alone: dict[str, object] = {"input_length": 600}
    rows = [row(at * 250.5, **more) for at, more in enumerate([*shared, alone])]
    path = write_lines(tmp_path / "t", HEADER, *rows)
    said = tuner("trace", "export", path, "--format", name, "-o", tmp_path / "out").out
    command = said.partition("vllm bench serve ")[2].splitlines()[0]
    parser = FlexibleArgumentParser()
    add_dataset_parser(parser)
    arguments = parser.parse_args(command.replace("out ", f"{tmp_path / 'out'} ").split())
    tokenizer = get_tokenizer(str(ROOT / "tuner" / "engines" / "models" / "tiny"))
    samples = TimedTrace(**vars(arguments)).sample(tokenizer, arguments.num_prompts)
    assert [one.prompt_len for one in samples] == [40, 41, 1040, 600]
    assert [one.expected_output_len for one in samples] == [5] * 4
    stamps = [0, 0.2505, 0.501, 0.7515]
    assert [one.timestamp for one in samples] == pytest.approx(stamps, abs=0.0006)
    prompts = [one.prompt for one in samples]
    if name == "timed_trace":
        assert prompts[0][:32] == prompts[1][:32] == prompts[2][:32]
    assert prompts[0] != prompts[1][:40]
    assert prompts[3][:16] != prompts[0][:16]
