"""Fetch programs that check what tuner writes into .venv/tools, from Debian, without installing.

    python3 scripts/tools.py

Only where there are apt-get and dpkg; what cannot be had is said, and its tests skip themselves.
Docker Compose reads a file without a Docker daemon.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent / ".venv" / "tools"
WRAPPER = TOOLS / "docker-compose"

COMPOSE = "docker-compose"
PYTHON_PARTS = (
    *("attr", "certifi", "chardet", "charset-normalizer", "distro", "docker", "dockerpty"),
    *("docopt", "dotenv", "idna", "jsonschema", "packaging", "paramiko", "pyrsistent", "requests"),
    *("six", "texttable", "urllib3", "websocket", "yaml"),
)
"""What Debian 12's docker-compose, a Python program, imports; later ones are one binary."""


def main() -> int:
    if WRAPPER.exists() or shutil.which(COMPOSE):
        return 0
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        print("tools: no apt-get and dpkg here; tests that need docker-compose skip themselves")
        return 0
    root = TOOLS / "root"
    if fetch(COMPOSE, root):
        if program(root).read_bytes().startswith(b"#!"):
            for part in PYTHON_PARTS:
                fetch(f"python3-{part}", root)
        write_wrapper(root)
    else:
        print("tools: docker-compose cannot be fetched; its tests skip themselves")
    return 0


def fetch(package: str, root: Path) -> bool:
    """Download a package and unpack it; its scripts do not run."""
    with tempfile.TemporaryDirectory() as folder:
        if not run(["apt-get", "download", "-q", package], folder):
            return False
        root.mkdir(parents=True, exist_ok=True)
        return all(run(["dpkg", "-x", str(one), str(root)], folder) for one in _debs(folder))


def _debs(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("*.deb"))


def run(command: list[str], folder: str) -> bool:
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)  # noqa: S603
    return done.returncode == 0


def program(root: Path) -> Path:
    places = ("bin", "cli-plugins")
    return next(path for path in root.rglob(COMPOSE) if path.parent.name in places)


def write_wrapper(root: Path) -> None:
    modules = root / "usr" / "lib" / "python3" / "dist-packages"
    WRAPPER.write_text(f'#!/bin/sh\nPYTHONPATH={modules} exec {program(root)} "$@"\n')
    WRAPPER.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
