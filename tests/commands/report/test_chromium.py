"""Reports in a real Chromium: no error, nothing fetched, nothing of strangers run, as wide as the
window, with charts that tell values and zoom."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.in_process import tuner
from tests.support.places import ROOT
from tests.support.profiles import ENGINE, profile
from tuner.profile.profile import save

SHOTS = ROOT / "scripts" / "shots.py"
HOSTILE = '<script>window.SHOTS=1</script><img src=x onerror="window.SHOTS=1">]]>\x1b[31m\u202e'


def looked_at(page: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SHOTS), str(page), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(f"reports were not looked at: {done.stderr.strip()}")
    assert done.returncode in {0, 1}, done.stderr
    return done


@pytest.mark.attack
def test_a_report_with_names_of_others_is_right_at_every_width(tmp_path: Path) -> None:
    engine = {**ENGINE, "model": f"{HOSTILE}{'x' * 300}", "max_num_seqs": 16}
    save(profile(engine=engine, reason=HOSTILE, warnings=[HOSTILE]), tmp_path / "p.yaml")
    assert tuner(tmp_path, "report", "p.yaml").returncode == 0
    done = looked_at(tmp_path / "report.html", tmp_path / "shots")
    assert done.stdout == ""
    assert len(list((tmp_path / "shots").glob("*.png"))) == 6


def test_looking_at_a_page_finds_what_is_wrong_with_it(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><script>window.SHOTS = 1</script><img src='http://127.0.0.1:9/x.png'>"
        "<p style='width: 900px'>wide"
        "<div class=chart tabindex=0><svg viewBox='0 0 9 9'></svg><output hidden></output></div>"
    )
    found = looked_at(page, tmp_path / "shots").stdout
    for fault in (
        "400 px, light: is 908 pixels wide",
        "a script of a stranger ran",
        "a pointer on a chart is told nothing",
        "dragging over a chart does not zoom",
        "an arrow key is told nothing",
        "the plus key does not zoom",
        "what was reset does not zoom",
        "fetches http://127.0.0.1:9",
    ):
        assert fault in found
