import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.traces import HEADER, SAMPLES, row, write_lines
from tuner import cli
from tuner.trace.trace import load

SAMPLE = SAMPLES / "translation.jsonl"
CONTRACT = [
    "requests",
    "rows_read",
    "dropped",
    "duration_s",
    "arrival_rate_rps",
    "interarrival_cv",
    "tick_ms",
    "input_tokens",
    "output_tokens",
    "concurrency",
    "prefix_share",
    "warnings",
]
BESIDES = [
    "dispersion",
    "same_time_share",
    "peak_arrivals",
    "in_flight",
    "running",
    "littles_mean",
    "window",
]


@dataclass(frozen=True, slots=True)
class Ended:
    code: object
    out: str
    err: str

    @property
    def text(self) -> str:
        """The output without its line breaks."""
        return " ".join(self.out.split())


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Run":
    return Run(monkeypatch, capsys)


class Run:
    """The program, in this process: arguments in, exit code and both streams out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> Ended:
        self.monkeypatch.setattr("sys.argv", ["tuner", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return Ended(caught.value.code, *self.capsys.readouterr())


def test_show_prints_the_contracts_object_and_nothing_else(tuner: Run) -> None:
    ended = tuner("trace", "show", SAMPLE, "--json")
    result = json.loads(ended.out)
    assert (ended.code, ended.err) == (0, "")
    assert list(result) == [*CONTRACT, *BESIDES]
    assert list(result["input_tokens"]) == ["mean", "p50", "p95", "p99", "max"]
    assert list(result["concurrency"]) == ["basis", "mean", "p50", "p95", "p99", "max"]
    assert result["concurrency"]["basis"] == "recorded"
    assert result["requests"] == result["rows_read"] == len(load(SAMPLE).requests)
    assert result["tick_ms"] is None


def test_show_counts_reconcile(tuner: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", HEADER, row(0), row(-1), row(1000), row(None), "{")
    result = json.loads(tuner("trace", "show", path, "--json").out)
    assert result["rows_read"] == 5
    assert result["dropped"] == {"bad_timestamp": 1, "no_timestamp": 1, "malformed": 1}
    assert result["requests"] == result["rows_read"] - sum(result["dropped"].values())
    assert sum("rows dropped" in warning for warning in result["warnings"]) == 3


def test_a_band_has_a_low_and_a_high_end(tuner: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", *(row(i * 100, output_length=100) for i in range(1000)))
    result = json.loads(tuner("trace", "show", path, "--json").out)["concurrency"]
    assert result["basis"] == "band"
    assert result["mean"] == [pytest.approx(10, rel=0.01), pytest.approx(80, rel=0.01)]


def test_the_report_says_at_once_if_a_unit_is_wrong(tuner: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", *(row(i) for i in range(0, 7200, 2)))
    ended = tuner("trace", "show", path)
    assert ended.code == 0
    assert "3,600 requests over 0.001999 h (7.2s), 500 req/s, tick 2 ms" in ended.out
    as_s = tuner("trace", "show", path, "--time-unit", "s")
    assert "3,600 requests over 1.999 h (7,198.0s), 0.5 req/s, tick 2,000 ms" in as_s.text


@pytest.mark.attack
def test_what_a_file_says_of_itself_cannot_move_the_cursor(tuner: Run, tmp_path: Path) -> None:
    header = {**HEADER, "source": "\x1b[2J[red]x", "dropped": {"\x1b]0;y": 1}}
    path = write_lines(tmp_path / "t", header, row(0, **{"\x1bkey": 1}))
    out = tuner("trace", "show", path).out
    assert "\x1b" not in out
    assert "[red]x" in out


def test_an_import_is_the_same_traffic_with_a_header(tuner: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", row(2000, request_id=7), row(1000.0, hash_ids=[1]))
    out = tmp_path / "out"
    ended = tuner("trace", "import", path, "-o", out, "--time-unit", "ms")
    assert (ended.code, ended.err) == (0, "")
    assert "2 requests over" in ended.text
    before, after = load(path), load(out)
    assert after.requests == before.requests
    assert after.digest == before.digest
    assert after.header.source == "mooncake"
    assert after.header.block_size == 512


def test_ticks_are_spread_evenly_and_the_result_says_so(tuner: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", *(row(i // 10 * 3000) for i in range(1000)))
    for name in ("a", "b"):
        ended = tuner("trace", "import", path, "-o", tmp_path / name, "--spread-ticks")
        assert "tick none" in ended.text
        assert "grid" not in ended.out
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    before, after = load(path), load(tmp_path / "a")
    assert "spread evenly within ticks of 3000 ms, seed 0" in after.header.notes
    moved_s = sorted(
        each.arrival_s - old.arrival_s
        for old, each in zip(before.requests, after.requests, strict=True)
    )
    assert 0 <= moved_s[0] < 0.1
    assert 2.9 < moved_s[-1] < 3
    result = json.loads(tuner("trace", "show", tmp_path / "a", "--json").out)
    assert result["tick_ms"] is None
    assert result["interarrival_cv"] == pytest.approx(1, abs=0.1)


def test_a_cut_sends_the_same_prompts_as_the_whole(tuner: Run, tmp_path: Path) -> None:
    ended = tuner("trace", "cut", SAMPLE, "-o", tmp_path / "out", "--window", "60s+1m")
    assert (ended.code, ended.err) == (0, "")
    whole, part = load(SAMPLE), load(tmp_path / "out")
    expected = [request for request in whole.requests if 60 <= request.arrival_s < 120]
    assert [request.row for request in part.requests] == [each.row for each in expected]
    assert [request.arrival_s for request in part.requests] == pytest.approx(
        [each.arrival_s - 60 for each in expected]
    )
    assert part.header.notes[-1] == "cut 60s+60s"


def test_the_busiest_part_has_the_length_asked_for(tuner: Run, tmp_path: Path) -> None:
    quiet = [row(i * 10_000) for i in range(50)]
    burst = [row(200_000 + i, output_length=100) for i in range(50)]
    path = write_lines(tmp_path / "t", HEADER, *quiet, *burst)
    ended = tuner("trace", "cut", path, "-o", tmp_path / "out", "--window", "busiest+20s")
    assert ended.code == 0
    assert len(load(tmp_path / "out").requests) == 52


def test_a_trace_can_be_imported_over_itself(tuner: Run, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", row(0), row(1000))
    digest = load(path).digest
    assert tuner("trace", "import", path, "-o", path, "--force").code == 0
    assert load(path).digest == digest


def test_what_one_recorded_server_got_can_be_cut_out(tuner: Run, tmp_path: Path) -> None:
    rows = [row(i * 1000, replica=i % 2, output_length=5 + 5 * (i % 2)) for i in range(10)]
    path = write_lines(tmp_path / "t", HEADER, *rows)
    assert "the traffic of 2 servers" in tuner("trace", "show", path).text
    ended = tuner("trace", "cut", path, "-o", tmp_path / "out", "--replica", "busiest")
    assert "the traffic of" not in ended.text
    result = load(tmp_path / "out")
    assert [(request.row, request.arrival_s) for request in result.requests] == [
        (i, float(i)) for i in range(1, 10, 2)
    ]
    assert result.header.notes == ("replica 1",)
    assert result.header.rows_kept == 5
    tuner("trace", "cut", path, "-o", tmp_path / "a", "--replica", "0", "--window", "2s+4s")
    assert [request.arrival_s for request in load(tmp_path / "a").requests] == [0.0, 2.0]
