"""Tune the sample trace and put what tuner printed into README.md: the numbers of this machine."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REGION = re.compile(
    r"(<!-- sweep output: begin .*?-->\n).*?(<!-- sweep output: end -->)", re.DOTALL
)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        profile = str(Path(folder) / "profile.yaml")
        tuner = str(Path(sys.executable).with_name("tuner"))
        command = ["sweep", "--trace", "traces/translation.jsonl", *sys.argv[1:]]
        done = subprocess.run(  # noqa: S603 - the command is ours
            [tuner, *command, "-o", profile],
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            return done.returncode
        output = done.stdout.replace(profile, "profile.yaml").strip("\n")
    typed = " ".join(["tuner", *command, "-o", "profile.yaml"])
    block = f"```console\n$ {typed}\n{output}\n```\n"
    page = ROOT / "README.md"
    page.write_text(REGION.sub(lambda found: found[1] + block + found[2], page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
