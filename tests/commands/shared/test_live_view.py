"""The live view: on terminals alone, within their width, cheap, and gone in the end."""

import io
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.support.builders import measurement
from tuner.commands.compare.view import CompareProgress
from tuner.commands.shared.live_view import EVERY_S, LiveView, is_live, rows_of
from tuner.commands.sweep.view import RunProgress
from tuner.commands.verify.run import shown_on
from tuner.engines.seam import Reply
from tuner.replay.live_reading import LiveReading, reading
from tuner.replay.replay import EARLY_S, WATCH_S
from tuner.runs.settings import SweepSettings
from tuner.traffic.window import Window

SETTINGS = SweepSettings(
    ceiling=8, slo=None, window="all", step_s=20.0, budget_s=600.0, headroom=1.0,
    closed_sessions=False, seed=0, trace_block_size=16,
)  # fmt: skip


def terminal(width: int = 80) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=24)


def replies(count: int) -> list[Reply]:
    """Requests in flight that got a token every 20 ms, and one that got none."""
    decoding = Reply(output_tokens=11, first_token_s=1.0, last_token_s=1.2)
    return [*[decoding] * (count - 1), Reply()]


def of(
    flying: Sequence[Reply], ttft_s: Sequence[float], kv_cache_usage: float | None
) -> LiveReading:
    """What a replay shows after three seconds, with two requests done."""
    return reading(
        3.0, done=2, flying=flying, in_flight=len(flying), ttft_s=ttft_s,
        kv_cache_usage=kv_cache_usage,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_reading_counts_who_decodes_and_who_waits() -> None:
    seen = of(replies(5), [0.1] * 19 + [0.5], kv_cache_usage=0.413)
    assert (seen.decoding, seen.waiting) == (4, 1)
    assert seen.tpot_s == pytest.approx(0.02)
    assert rows_of(seen) == {
        "now": "4 decoding, 1 before a first token, TPOT 20.0 ms, p95 TTFT 100 ms",
        "KV": "about 41 % of the cache, by those that decode",
    }


def test_before_any_token_there_is_nothing_to_tell_of_times() -> None:
    seen = of([Reply()], [], kv_cache_usage=None)
    assert rows_of(seen) == {"now": "0 decoding, 1 before a first token", "KV": ""}


@pytest.mark.parametrize("name", ["CI", "NO_COLOR"])
def test_whoever_asks_for_plain_lines_gets_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_live(terminal())
    monkeypatch.setenv(name, "1")
    assert not is_live(terminal())


def test_what_is_no_terminal_gets_plain_lines() -> None:
    assert not is_live(Console(file=io.StringIO()))


def test_no_line_is_longer_than_the_terminal_is_wide() -> None:
    console = terminal(40)
    view = LiveView(console)
    view.show("a\x1b[2J" + "x" * 100, {"now": "y" * 100, "left": ""})
    lines = console.render_lines(view.text(), pad=False)
    assert [sum(part.cell_length for part in line) <= 40 for line in lines] == [True, True]
    assert "\\x1b[2J" in view.text().plain


def test_it_leaves_nothing_on_the_terminal_but_what_was_printed() -> None:
    console = terminal()
    with LiveView(console) as view:
        view.show("under way", {"now": "4 decoding"}, at_once=True)
        console.print("00:01 a line")
    file = console.file
    assert isinstance(file, io.StringIO)
    said = file.getvalue()
    assert "under way" in said
    assert said.count("\x1b[?25l") == said.count("\x1b[?25h") == 1
    assert said.rstrip().endswith("\x1b[2K")  # the last thing done is to clear its lines


def test_a_run_shows_its_ladder_its_belief_and_what_is_left() -> None:
    progress = RunProgress(600.0, (1, 2, 4, 8))
    progress.trial("short 1", 5.0)
    progress.trial("ladder 4", 20.0)
    progress.measured("ladder 4", measurement(4))
    progress.trial("ladder 8", 20.0)
    progress.believed(4, 37, 40)
    rows = progress.view.rows
    assert list(rows) == ["ladder", "now", "KV", "device", "belief", "left"]
    assert rows["ladder"].replace("+", "✓").replace(">", "▸") == "1✓  2  4✓  ▸8"
    assert rows["belief"] == "4, in 37 of 40 draws"
    assert rows["left"].startswith("at most ")


def test_a_comparison_shows_its_replays_and_what_is_left_of_its_whole_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tuner.commands.shared.live_view.time", SimpleNamespace(monotonic=lambda: 0.0)
    )
    progress = CompareProgress(600.0)
    progress.trial("3 of 24: one worker, heavy, uniform", 20.0)
    rows = progress.view.rows
    assert (rows["replays"], rows["ladder"]) == ("2 done, 1 running, 21 to come", "")
    assert rows["left"] == "at most 10 min"


def test_a_verification_shows_its_windows_its_device_and_what_is_left() -> None:
    view = LiveView(terminal())
    row = (0.63, math.nan, math.nan, 0.3, *[math.nan] * 4)
    read = view.reading(lambda: row)
    assert read is not None
    assert read() is row
    windows = [Window(0.0, 16.0, 8.0), Window(100.0, 16.0, 4.0)]
    progress = shown_on(view, "verifying max_num_seqs 8", windows)
    for elapsed_s in (3.0, 23.0, 5.0):  # the second of the windows has begun
        seen = of(replies(5), [0.1], kv_cache_usage=None)
        progress(replace(seen, elapsed_s=elapsed_s))
    assert view.title == "verifying max_num_seqs 8, window 2 of 2: 5 of 20 s, 2 done"
    assert view.rows["left"] == "about 15 s of replay"
    assert view.rows["device"] == "63 % busy, 30 % of the cores are others'"


def test_a_second_of_it_costs_less_than_a_hundredth_of_a_core_and_delays_no_send() -> None:
    """At 10,000 tokens a second: 250 requests in flight, a token every 25 ms.

    Whoever sends wakes up EARLY_S before a request is due: what is shorter makes none late.
    """
    flying, ttft_s = replies(250), [0.1] * 450
    readings_s, drawings_s = list[float](), list[float]()
    with LiveView(terminal()) as view:
        for _ in range(50):
            began_s = time.process_time()
            seen = of(flying, ttft_s, kv_cache_usage=0.4)
            readings_s.append(time.process_time() - began_s)
            rows = {**rows_of(seen), **dict.fromkeys(("ladder", "device", "belief"), "x" * 60)}
            began_s = time.process_time()
            view.show("ladder 256", rows, at_once=True)
            drawings_s.append(time.process_time() - began_s)
    assert sum(readings_s) / 50 / WATCH_S + sum(drawings_s) / 50 / EVERY_S < 0.01
    assert median(readings_s) + median(drawings_s) < EARLY_S
