"""`tuner apply` on files that want to be mistaken: names, links, encodings, line ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.apply.test_apply import Done, Tuner, names, refused, tuner  # noqa: F401 - a fixture
from tests.support.profiles import ENGINE, profile
from tuner.commands.apply import view
from tuner.profile.profile import save

pytestmark = pytest.mark.attack


SERVE = "model: acme/translator-7b\nmax-num-seqs: 32\n"


@pytest.fixture
def run(tuner: Tuner) -> Tuner:  # noqa: F811 - the fixture
    save(profile(engine={**ENGINE, "model": "acme/translator-7b"}), Path("profile.yaml"))
    return tuner


def lines_of(done: Done) -> list[str]:
    assert done.exit_code == 0, done.err
    return done.out.splitlines()


APPLIED_AND_ROLLED_BACK = """
import sys
from tuner.cli import main
name = sys.argv[-1]
for before in ("profile.yaml", "--rollback"):
    sys.argv = ["tuner", "apply", before, name]
    try:
        main()
    except SystemExit as end:
        assert end.code == 0
    if before == "profile.yaml":
        print("now back", flush=True)
"""


def test_a_name_that_is_no_text_is_a_name_too(run: Tuner) -> None:
    assert callable(run)  # it made the profile
    name = b"\xff.yaml"
    Path(os.fsdecode(name)).write_text(SERVE)
    program = [sys.executable, "-c", APPLIED_AND_ROLLED_BACK, os.fsdecode(name)]
    done = subprocess.run(program, capture_output=True, check=False)
    first, back = done.stdout.split(b"now back\n")
    assert (done.returncode, first[:6], back[:6]) == (0, b"\xff.yaml", b"\xff.yaml"), done.stderr
    assert Path(os.fsdecode(name)).read_text() == SERVE


def test_a_name_cannot_add_lines_to_a_patch(run: Tuner) -> None:
    name = "a\n+++ b\n@@ -1 +1 @@\n.yaml"
    Path(name).write_text(SERVE)
    shown = lines_of(run("apply", "profile.yaml", "--dry-run", name))
    assert shown[0].startswith("--- a\\n+++ b")
    assert len([line for line in shown if line.startswith("+++ ")]) == 1


def test_hard_links_to_the_old_content_are_said(run: Tuner) -> None:
    Path("d.yaml").write_text(SERVE)
    os.link("d.yaml", "other.yaml")
    done = run("apply", "profile.yaml", "d.yaml")
    assert done.err == "Warning: hard links to the old content of d.yaml remain: 1\n"
    assert Path("other.yaml").read_text() == SERVE
    assert Path("d.yaml").read_text() != SERVE


def test_a_diff_for_a_terminal_moves_no_cursor() -> None:
    """For patch the file's own bytes stand in it; a terminal gets them spelt."""
    text = "--- a\n-\tx: \x1b[2J\u202e\u061c\n+\tx: ü\n"
    assert view.shown_diff(text) == ("--- a\n-\tx: \\x1b[2J\\u202e\\u061c\n+\tx: ü\n")
