"""Compare the article's approaches on the sample trace and put the tables into docs/journey.md.

python scripts/journey.py real|simulated [options of tuner compare]
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRACE = "traces/translation.jsonl"
COMMANDS = {
    "real": ["compare", "--trace", TRACE],
    "simulated": [
        *("compare", "--trace", TRACE, "--engine", "sim"),
        *("--world", "examples/worlds/article.yaml", "--step", "90s", "--budget", "6h"),
    ],
}


def main() -> int:
    which = sys.argv[1] if len(sys.argv) > 1 else ""
    if which not in COMMANDS:
        print(__doc__, file=sys.stderr)
        return 2
    command = [*COMMANDS[which], *sys.argv[2:]]
    with tempfile.TemporaryDirectory() as folder:
        tuner = str(Path(sys.executable).with_name("tuner"))
        done = subprocess.run(  # noqa: S603 - the command is ours
            [tuner, *command, "-o", folder], cwd=ROOT, check=False
        )
        if done.returncode != 0:
            return done.returncode
        tables = (Path(folder) / "comparison.md").read_text()
    block = f"```sh\n{' '.join(['tuner', *command])}\n```\n\n{tables}\n"
    page = ROOT / "docs" / "journey.md"
    region = re.compile(rf"(<!-- {which}: begin .*?-->\n).*?(<!-- {which}: end -->)", re.DOTALL)
    page.write_text(region.sub(lambda found: found[1] + block + found[2], page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
