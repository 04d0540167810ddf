"""``tuner report``: a page of a run or of a profile, whatever state they are in."""

import html
import json
import re
import shlex
import shutil
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from tests.support.builders import record
from tests.support.in_process import tuner
from tests.support.places import ROOT
from tests.support.profiles import ENGINE, profile
from tuner.engines.seam import ITERATION
from tuner.profile.profile import save
from tuner.replay.records import Replay
from tuner.runs.journal import read, resume

HOSTILE = "<script>alert(1)</script>]]>\x1b[31m\u202e"


pytestmark = pytest.mark.usefixtures("by_few_draws")


class _Outline(HTMLParser):
    """Checks that elements nest, and gathers what a test asks about."""

    VOID = frozenset({"meta", "line", "path", "rect", "circle"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
            self._text = ""

    def handle_endtag(self, tag: str) -> None:
        if tag in self.VOID:
            return
        assert self.open.pop() == tag
        if tag in {"h1", "h2"}:
            self.headings.append(self._text.strip())

    def handle_data(self, data: str) -> None:
        self._text += data


def outline(path: Path) -> _Outline:
    found = _Outline()
    found.feed(path.read_text(encoding="utf-8"))
    assert found.open == []
    return found


def next_on(text: str) -> list[str]:
    """Return the words of the command that a page ends its verdict with."""
    (said,) = re.findall(r"<code>(tuner [^<]*)</code>", text)
    return shlex.split(html.unescape(said))


TRACE = ROOT / "traces" / "translation.jsonl"
WORLD = ROOT / "examples" / "worlds" / "article-quiet.yaml"
ASKED = (
    *("sweep", f"--trace={TRACE}", "--engine=sim", f"--world={WORLD}", "--ceiling=16"),
    *("--slo=e2el=20s,tpot=60ms", "--step=20s"),
)


@pytest.fixture(scope="module")
def page(run_dir: Path) -> Path:
    """Its page, and that nothing else was said."""
    done = tuner(run_dir.parent, "report", run_dir)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Warning" not in done.stderr
    return run_dir.parent / "report.html"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of a simulated engine."""
    folder = tmp_path_factory.mktemp("swept")
    done = tuner(folder, *ASKED, "--run-dir=run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_the_page_of_a_sweep_has_the_answer_first_and_everything_it_rests_on(
    run_dir: Path, page: Path
) -> None:
    found = outline(page)
    assert found.headings == [
        "Use at least max_num_seqs 16: 100% of requests meet the SLO", "Curve", "Warnings",
        "Decode time", "Traffic", "Replays over time",
    ]  # fmt: skip
    charts = [attributes for tag, attributes in found.found if tag == "svg"]
    assert all(one["role"] == "img" and one["aria-label"] for one in charts)
    assert len(charts) == 4 + 1 + 3 + 3 * _steps(run_dir)
    assert all(one.get("scope") in {"row", "col"} for tag, one in found.found if tag == "th")
    assert page.stat().st_size < 1_500_000


def test_a_run_of_many_requests_has_a_small_page_in_seconds(run_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(run_dir, tmp_path / "large")
    _enlarge(tmp_path / "large", requests=30_000, tokens=10)
    before_s = time.process_time()
    done = tuner(tmp_path, "report", "large")
    spent_s = time.process_time() - before_s
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<td>30,000 in " in text
    assert "1,000 in flight" in text or "in flight at most 1,000" in text
    assert len(text.encode()) <= 1_500_000
    assert spent_s < 10  # it takes some 1.5; what looks at all of them for each takes hours


def _enlarge(run_dir: Path, *, requests: int, tokens: int) -> None:
    """Give a run a trace of so many requests, ten a second, and a replay of all of them: each
    takes 100 s, so that 1,000 are in flight."""
    at_s = np.arange(requests) / 10
    header, *_ = (run_dir / "trace.jsonl").read_text(encoding="utf-8").splitlines()
    rows = (
        f'{{"timestamp":{100 * row},"input_length":50,"output_length":{tokens}}}'
        for row in range(requests)
    )
    (run_dir / "trace.jsonl").write_text("\n".join((header, *rows, "")), encoding="utf-8")
    sent = np.repeat(record(), requests)
    sent["row"], sent["planned_s"], sent["sent_s"] = np.arange(requests), at_s, at_s
    sent["input_length"], sent["output_length"], sent["output_tokens"] = 50, tokens, tokens
    sent["first_s"], sent["last_s"], sent["end_s"] = at_s + 10, at_s + 100, at_s + 100
    sent["tpot_s"], sent["gaps"] = 10.0, tokens - 1
    iterations = np.zeros(requests, ITERATION)
    iterations["start_s"], iterations["duration_s"] = at_s, 0.1
    iterations["decode_seqs"] = iterations["running"] = 16
    length_s = requests / 10
    book = resume(run_dir, read(run_dir).events[0]["plan"])
    whole = Replay(
        16, 0.0, length_s, length_s + 100, iterations, kv_blocks=1200, requests=sent,
        gaps_s=np.full(requests * (tokens - 1), 10.0),
    )  # fmt: skip
    book.append_replay(
        whole, purpose="confirm", max_num_seqs=16, elapsed_s=length_s + 100, window=0, trial=999,
        at_s=book.clock_s,
    )  # fmt: skip
    book.close()


def _steps(run_dir: Path) -> int:
    lines = (run_dir / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    return len({(one["trial"], one["purpose"]) for one in events if one["event"] == "replay"})


def test_the_page_of_a_profile_alone_has_no_replays(run_dir: Path, tmp_path: Path) -> None:
    assert tuner(tmp_path, "report", run_dir / "profile.yaml", "-o", "p.html").returncode == 0
    page = outline(tmp_path / "p.html")
    assert "Curve" in page.headings
    assert "Replays over time" not in page.headings


def test_a_profile_decided_by_windows_alone_has_a_page_too(tmp_path: Path) -> None:
    save(profile(), tmp_path / "p.yaml")
    assert tuner(tmp_path, "report", "p.yaml").returncode == 0
    assert outline(tmp_path / "report.html").headings[1] == "Curve"


def test_a_run_that_has_not_ended_is_reported_as_far_as_it_came(
    run_dir: Path, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    shutil.copytree(run_dir, begun)
    (begun / "profile.yaml").unlink()
    lines = (begun / "journal.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for count in (1, 4, len(lines) // 2, len(lines)):
        torn = "".join(lines[:count]) + '{"event": "rep'
        (begun / "journal.jsonl").write_text(torn, encoding="utf-8")
        done = tuner(tmp_path, "report", "begun")
        assert done.returncode == 0, done.stderr
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert "This run has not ended" in text
        assert next_on(text) == ["tuner", *ASKED, "--resume", "--run-dir", "begun"]


def test_what_cannot_be_read_back_is_said_and_the_rest_is_shown(
    run_dir: Path, tmp_path: Path
) -> None:
    shutil.copytree(run_dir, tmp_path / "run")
    (tmp_path / "run" / "replays" / "001.npz").write_bytes(b"no array")
    assert tuner(tmp_path, "report", "run").returncode == 0
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "A part of this run cannot be read back: run/replays/001.npz" in text


@pytest.mark.attack
def test_names_of_others_are_shown_and_never_run(tmp_path: Path) -> None:
    engine = {**ENGINE, "model": HOSTILE, "max_num_seqs": 16}
    save(profile(engine=engine, reason=HOSTILE), tmp_path / "p.yaml")
    assert tuner(tmp_path, "report", "p.yaml").returncode == 0
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert not set("\x1b\u202e") & set(text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;]]&gt;\\x1b[31m\\u202e" in text


def test_what_is_no_report_is_not_written_over(tmp_path: Path) -> None:
    save(profile(), tmp_path / "p.yaml")
    (tmp_path / "report.html").write_text("<p>mine</p>")
    assert tuner(tmp_path, "report", "p.yaml").returncode == 3
    assert (tmp_path / "report.html").read_text() == "<p>mine</p>"
    (tmp_path / "report.html").unlink()
    assert tuner(tmp_path, "report", "p.yaml").returncode == 0
    assert tuner(tmp_path, "report", "p.yaml").returncode == 0  # an older report is


def test_the_same_run_gives_the_same_page(run_dir: Path, page: Path, tmp_path: Path) -> None:
    assert tuner(tmp_path, "report", run_dir).returncode == 0
    text = page.read_text(encoding="utf-8")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == text
    assert not re.search(r"\bnan\b", text.lower())
