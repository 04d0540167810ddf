"""Names of others, in a model or an engine's error, on the terminal and in Markdown: shown, and
never acted on. Of pages: test_report.py and test_chromium.py; of JUnit: test_verify.py."""

from pathlib import Path

import pytest

from tests.support.in_process import tuner
from tests.support.profiles import ENGINE, profile
from tuner.profile.profile import save

HOSTILE = "<script>alert(1)</script>]]>\x1b[31m\u202e|[a](b)"
pytestmark = pytest.mark.attack


@pytest.mark.parametrize("more", [(), ("--details",)])
def test_a_terminal_is_not_steered(more: tuple[str, ...], tmp_path: Path) -> None:
    engine = {**ENGINE, "model": HOSTILE, "served_model_name": HOSTILE, "max_num_seqs": 16}
    save(profile(engine=engine, reason=HOSTILE, warnings=[HOSTILE]), tmp_path / "p.yaml")
    done = tuner(tmp_path, "show", "p.yaml", *more)
    assert done.returncode == 0, done.stderr
    assert not set("\x1b\u202e") & set(done.stdout + done.stderr)
    assert "<script>" in done.stdout
