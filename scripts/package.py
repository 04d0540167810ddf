"""Build the wheel and the sdist, and use each in an empty environment without vLLM: `make package`.

Reading a trace, the simulator, `show`, `plan` and `apply` need nothing else. The packages come from
where pip is configured to look, at the versions of requirements/; about 150 MB, if uv has none yet.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setup import LOCK, ROOT, SETUP_LOCK, UV, Words, find_links, pip_configuration, uv_environment

WORLD = ROOT / "examples" / "worlds" / "article.yaml"
PROFILE = ROOT / "profiles" / "chat-small-cpu.yaml"
COMMANDS = f"""
trace import requests.csv -o prod.jsonl
trace show prod.jsonl
sweep --trace prod.jsonl --world {WORLD} -o profile.yaml
show profile.yaml
plan profile.yaml --load 1.5
apply {PROFILE} serve.yaml --dry-run
"""
NO_VLLM = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is not None)"


def main() -> None:
    pip = pip_configuration()
    environment, links = uv_environment(pip), find_links(pip)
    pinned: Words = ["--build-constraints", SETUP_LOCK, *links]

    def run(command: Words, cwd: Path = ROOT) -> None:
        done = subprocess.run(  # noqa: S603
            command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"package: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")

    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    run([UV, "build", "--out-dir", dist, *pinned])
    for built in dist.glob("*tuner-*"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(shutil.copytree(ROOT / "examples" / "walk", Path(name) / "walk"))
            python = folder / "venv" / "bin" / "python"
            run([UV, "venv", "--python", sys.executable, folder / "venv"])
            install: Words = [UV, "pip", "install", "--python", python, "--constraints", LOCK]
            run([*install, *pinned, built])
            run([python, "-c", NO_VLLM])
            for line in COMMANDS.strip().splitlines():
                run([python.with_name("tuner"), *line.split()], cwd=folder)
        print(f"{built.name}: every command works without vLLM")


if __name__ == "__main__":
    main()
