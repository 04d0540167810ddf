"""``tuner trace``: what it shows of a trace, and what it writes."""

from pathlib import Path
from typing import Any

import pytest

from tests.outside.table import BAD_INPUT, OK, USAGE, Done, run
from tests.support.traces import HEADER, SAMPLES, row, write_lines
from tuner.trace.trace import load

SAMPLE = SAMPLES / "translation.jsonl"
CONTRACT = {
    *("requests", "rows_read", "dropped", "duration_s", "arrival_rate_rps", "interarrival_cv"),
    *("tick_ms", "input_tokens", "output_tokens", "concurrency", "prefix_share", "warnings"),
    *("dispersion", "same_time_share", "peak_arrivals", "in_flight", "running", "littles_mean"),
    "window",
}
"""Keys that programs read."""


def shown(folder: Path, *options: object) -> Any:  # noqa: ANN401 - JSON
    done = run(folder, "trace show", *options, "--json")
    assert (done.code, done.stderr) == (OK, "")
    return done.json


def text(done: Done) -> str:
    """Return what a command printed without its line breaks."""
    assert done.code == OK, done.stderr
    return " ".join(done.stdout.split())


# -- show


def test_show_prints_the_contracts_object_and_nothing_else(tmp_path: Path) -> None:
    result = shown(tmp_path, SAMPLE)
    assert set(result) == CONTRACT
    assert list(result["input_tokens"]) == ["mean", "p50", "p95", "p99", "max"]
    assert list(result["concurrency"]) == ["basis", "mean", "p50", "p95", "p99", "max"]
    assert result["concurrency"]["basis"] == "recorded"
    assert result["requests"] == result["rows_read"] == len(load(SAMPLE))
    assert result["tick_ms"] is None


def test_the_report_says_at_once_if_a_unit_is_wrong(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", *(row(i) for i in range(0, 7200, 2)))
    assert "3,600 requests over 0.001999 h (7.2s), 500 req/s, tick 2 ms" in text(
        run(tmp_path, "trace show", path)
    )
    as_s = text(run(tmp_path, "trace show", path, "--time-unit", "s"))
    assert "3,600 requests over 1.999 h (7,198.0s), 0.5 req/s, tick 2,000 ms" in as_s


@pytest.mark.attack
def test_what_a_file_says_of_itself_cannot_move_the_cursor(tmp_path: Path) -> None:
    header = {**HEADER, "source": "\x1b[2J[red]x", "dropped": {"\x1b]0;y": 1}}
    path = write_lines(tmp_path / "t", header, row(0, **{"\x1bkey": 1}))
    out = text(run(tmp_path, "trace show", path))
    assert "\x1b" not in out
    assert "[red]x" in out


def test_waiting_and_running_are_kept_apart(tmp_path: Path) -> None:
    rows = [row(i * 1000, e2e_ms=5000, queue_ms=2000) for i in range(101)]
    result = shown(tmp_path, write_lines(tmp_path / "t", HEADER, *rows))
    assert result["in_flight"]["mean"] == result["in_flight"]["max"] == 5
    assert result["running"]["mean"] == result["running"]["max"] == 3
    assert result["concurrency"]["mean"] == 5
    assert result["littles_mean"] == pytest.approx(5, rel=0.02)


def test_the_busiest_part_is_shown_beside_the_whole(tmp_path: Path) -> None:
    calm = [row(i * 1000) for i in range(600)]
    burst = [row(300_000 + i * 100) for i in range(600)]
    path = write_lines(tmp_path / "t", HEADER, *calm, *burst)
    result = shown(tmp_path, path)["window"]
    assert result["start_s"] == pytest.approx(300, abs=1)
    assert result["length_s"] == 60
    assert result["load"] == pytest.approx(11 / 2, rel=0.02)
    result = shown(tmp_path, path, "--window", "10s+5s")["window"]
    assert (result["start_s"], result["length_s"], result["requests"]) == (10, 5, 5)
    assert shown(tmp_path, path, "--window", "busiest+90s")["window"]["length_s"] == 90


def test_a_part_without_requests_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", HEADER, row(0), row(9000))
    done = run(tmp_path, "trace show", path, "--window", "2s+3s")
    assert done.code == BAD_INPUT
    assert "no request was served in 2s+3s" in done.error


def test_replicas_that_the_trace_knows_are_shown(tmp_path: Path) -> None:
    rows = [row(i * 1000, e2e_ms=1500, replica=2_000_000_000 * (i % 3 == 0)) for i in range(99)]
    path = write_lines(tmp_path / "t", HEADER, *rows)
    assert shown(tmp_path, path)["per_replica"]["requests"] == [66, 33]
    assert "2 servers, 33 to 66 requests each" in text(run(tmp_path, "trace show", path))


def test_shared_beginnings_are_counted(tmp_path: Path) -> None:
    rows = [row(i * 1000, input_length=32, hash_ids=[0, i + 1], replica=0) for i in range(4)]
    path = write_lines(tmp_path / "t", HEADER, *rows)
    assert "37.5% of prompt tokens" in text(run(tmp_path, "trace show", path))
    assert "per_replica" not in shown(tmp_path, path)


# -- import


def test_ticks_are_spread_evenly_and_the_result_says_so(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", *(row(i // 10 * 3000) for i in range(1000)))
    for name in ("a", "b"):
        done = run(tmp_path, "trace import", path, "-o", name, "--spread-ticks")
        assert "tick none" in text(done)
        assert "grid" not in done.stdout
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    before, after = load(path), load(tmp_path / "a")
    assert "spread evenly within ticks of 3000 ms, seed 0" in after.header.notes
    moved_s = sorted(
        each.arrival_s - old.arrival_s
        for old, each in zip(before.requests, after.requests, strict=True)
    )
    assert 0 <= moved_s[0] < 0.1
    assert 2.9 < moved_s[-1] < 3
    assert shown(tmp_path, "a")["interarrival_cv"] == pytest.approx(1, abs=0.1)


def test_a_trace_can_be_imported_over_itself(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", row(0), row(1000))
    digest = load(path).digest
    assert run(tmp_path, "trace import", path, "-o", path, "--force").code == OK
    assert load(path).digest == digest


@pytest.mark.parametrize(
    ("sources", "option"),
    [
        (("t",), ("--selector", 'job="vllm"')),
        (("t", "t2"), ("--time-unit", "s")),
        (("http://user:s3cr3t@localhost",), ("--allow-text",)),
        (("http://localhost", "t"), ()),
        (("t", "t2"), ("--lengths", "t")),
    ],
)
def test_an_option_of_another_kind_of_source_is_refused(
    tmp_path: Path, sources: tuple[str, ...], option: tuple[str, ...]
) -> None:
    for name in ("t", "t2"):
        write_lines(tmp_path / name, HEADER, row(0))
    done = run(tmp_path, "trace import", *sources, *option, "-o", "out")
    assert done.code == USAGE
    assert "s3cr3t" not in done.error
    assert not (tmp_path / "out").exists()


# -- cut


def test_a_cut_sends_the_same_prompts_as_the_whole(tmp_path: Path) -> None:
    done = run(tmp_path, "trace cut", SAMPLE, "-o", "out", "--window", "60s+1m")
    assert (done.code, done.stderr) == (OK, "")
    whole, part = load(SAMPLE), load(tmp_path / "out")
    expected = [request for request in whole.requests if 60 <= request.arrival_s < 120]
    assert [request.row for request in part.requests] == [each.row for each in expected]
    assert [request.arrival_s for request in part.requests] == pytest.approx(
        [each.arrival_s - 60 for each in expected]
    )
    assert part.header.notes[-1] == "cut 60s+60s"


def test_what_one_recorded_server_got_can_be_cut_out(tmp_path: Path) -> None:
    rows = [row(i * 1000, replica=i % 2, output_length=5 + 5 * (i % 2)) for i in range(10)]
    path = write_lines(tmp_path / "t", HEADER, *rows)
    assert "the traffic of 2 servers" in text(run(tmp_path, "trace show", path))
    done = run(tmp_path, "trace cut", path, "-o", "out", "--replica", "busiest")
    assert "the traffic of" not in text(done)
    result = load(tmp_path / "out")
    assert [(request.row, request.arrival_s) for request in result.requests] == [
        (i, float(i)) for i in range(1, 10, 2)
    ]
    assert result.header.notes == ("replica 1",)
    assert result.header.rows_kept == 5
    run(tmp_path, "trace cut", path, "-o", "a", "--replica", "0", "--window", "2s+4s")
    assert [request.arrival_s for request in load(tmp_path / "a").requests] == [0.0, 2.0]
    for name in ("7", "one"):
        assert run(tmp_path, "trace cut", path, "-o", "b", "--replica", name).code != OK


def test_a_trace_of_failures_is_shown(tmp_path: Path) -> None:
    rows = [{"timestamp": i * 1000, "status": "rejected", "replica": i % 2} for i in range(300)]
    path = write_lines(tmp_path / "t", HEADER, *rows)
    result = shown(tmp_path, path)
    assert result["window"] is result["running"] is result["in_flight"] is None
    assert run(tmp_path, "trace show", path).code == OK
