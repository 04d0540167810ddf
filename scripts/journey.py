"""Compare the article's approaches on the sample trace and put the tables into docs/journey.md.

python scripts/journey.py real|simulated [options of tuner compare]
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "journey.md"
TRACE = "traces/translation.jsonl"
PROFILE = "profiles/translation-tiny-cpu.yaml"
COMMANDS = {
    "real": ["compare", "--trace", TRACE, "--profile", PROFILE, "--force", "--sweep"],
    "simulated": [
        *("compare", "--trace", TRACE, "--engine", "sim"),
        *("--world", "examples/worlds/article.yaml", "--step", "90s", "--budget", "6h"),
    ],
}

ARTICLE = {
    "one worker": "2.2 at 25 concurrent",
    "two workers": "2.0 (0.91x)",
    "static batching": "5.9 (2.68x)",
    "continuous, untuned": "15.0 (6.82x), uniform lengths, 64 slots",
    "continuous, tuned": "3.5 (1.59x of another baseline), real lengths, 16 slots",
    "the whole profile": "10.7 in staging; 9.0 to 16.4 (1.82x) in production",
}
"""Approach → what the article reports."""


def main() -> int:
    which, *rest = sys.argv[1:] or [""]
    if which not in COMMANDS:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    command = [*COMMANDS[which], *rest]
    with tempfile.TemporaryDirectory() as folder:
        tuner = str(Path(sys.executable).with_name("tuner"))
        done = subprocess.run(  # noqa: S603 - the command is ours
            [tuner, *command, "-o", folder], cwd=ROOT, check=False
        )
        if done.returncode != 0:
            return done.returncode
        tables = (Path(folder) / "comparison.md").read_text()
    page = put(PAGE.read_text(), which, f"```sh\ntuner {' '.join(command)}\n```\n\n{tables}\n")
    PAGE.write_text(put(page, "beside", f"{beside(page)}\n"))
    return 0


def put(page: str, name: str, content: str) -> str:
    """Return the page with this content between its markers."""
    region = re.compile(rf"(<!-- {name}: begin .*?-->\n).*?(<!-- {name}: end -->)", re.DOTALL)
    return region.sub(lambda found: found[1] + content + found[2], page)


def beside(page: str) -> str:
    """Return the article's numbers beside those of the page's tables, as one table."""
    places = {name: _served(page, name) for name in ("simulated", "real")}
    lines = [
        "| approach | article | simulated: captured | uniform | this CPU: captured | uniform |",
        "|---|---|---|---|---|---|",
    ]
    for approach, reported in ARTICLE.items():
        cells = [approach, reported]
        for found in places.values():
            cells += [found.get((approach, kind), "-") for kind in ("captured", "uniform")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _served(page: str, name: str) -> dict[tuple[str, str], str]:
    """Return (approach, lengths) → throughput and ratio, from the very heavy tables of a region."""
    region = re.search(rf"<!-- {name}: begin .*?<!-- {name}: end -->", page, re.DOTALL)
    found, kind = {}, None
    for line in (region[0] if region else "").splitlines():
        if line.startswith("**"):
            kind = "captured" if "as captured" in line else "uniform"
            kind = kind if line.startswith("**very-heavy") else None
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        title = re.sub(r" \(\d+\)$", "", cells[0]) if line.startswith("| ") else ""
        if kind and title in ARTICLE:
            slots = re.search(r" \((\d+)\)$", cells[0])
            shown = f"{cells[1]} ({cells[2].partition(' ')[0]})"
            found[title, kind] = f"{shown}, {slots[1]} slots" if slots else shown
    return found


if __name__ == "__main__":
    sys.exit(main())
