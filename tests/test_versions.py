"""What `make versions` makes of a wheel, and of what a check says."""

import re
import subprocess
import sys

from tests.support.places import ROOT

SAID = """
import sys; sys.path.insert(0, "scripts")
import versions
print(versions.said_by(".F.\\n1 failed, 2 passed, 1 warning in 3.21s\\n", "noise"))
print(versions.said_by("", "error: no such thing\\n  hint: look\\n"))
print(versions.said_by("", "Traceback\\nImportError: no module\\n"))
print(versions.said_by("", ""))
asked = versions.requirements("Requires-Dist: torch==2.0\\nRequires-Dist: b; extra == 'c'\\n")
print([str(one) for one in asked], versions.fits(asked), versions.fits([]))
said = {"names": "passed", "flags": "1 failed"}
ours = versions.Tried("0.33.0", "of 0.32.0", said, date="2026-01-01")
theirs = versions.Tried("0.26.0", "its own", {"names": "a|b"}, date="2026-01-02")
print(versions.left(["names", "flags", "engine"], ours), versions.left(["names"], None))
print(versions.with_profile(["apply", "names"]), versions.with_profile(["faults"]))
print("\\n".join(versions.table([theirs, ours]).splitlines()[:6]))
"""


ELSEWHERE = {
    "tests/commands/shared/test_next_step_vllm.py",  # takes long
    "tests/engines/vllm/test_flags.py",  # by scripts/vllm_flags.py
    "tests/engines/vllm/test_on_a_gpu.py",
    "tests/live/watch/test_vllm_quiet.py",
    "tests/runs/cluster/test_vllm.py",  # takes long, and Ray
    "tests/test_docs.py",  # pages name lines of one version
    "tests/test_examples.py",  # takes long
}
"""Tests that need vLLM and are not tried with every version."""


def test_a_check_that_failed_is_a_line_and_what_did_not_run_is_not_tried() -> None:
    """In a process of its own: scripts are no package."""
    words = [sys.executable, "-c", SAID]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "1 failed, 2 passed",
        "error: no such thing",
        "ImportError: no module",
        "nothing was said",
        "['torch==2.0'] False True",
        "['flags', 'engine'] ['names']",
        "['names', 'sweep --base', 'apply'] ['faults']",
        "| vLLM | 0.26.0 | 0.33.0 |",
        "| --- | --- | --- |",
        "| tried on | 2026-01-02 | 2026-01-01 |",
        "| kernels | its own | of 0.32.0 |",
        "| names | a\\|b | passed |",
        "| flags | not tried | 1 failed |",
    ]


def test_every_test_that_needs_vllm_is_in_a_check() -> None:
    """Or else a version would count as tried in full that is not."""
    told = "import sys; sys.path.insert(0, 'scripts'); import versions; print(versions.CHECKS)"
    words = [sys.executable, "-c", told]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    checked = set(re.findall(r"tests/[\w/]+\.py", done.stdout))
    needs = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"mark\.vllm\b", path.read_text(encoding="utf-8"))
    }
    assert checked == needs - ELSEWHERE
