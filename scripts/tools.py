"""Fetch programs that check what tuner writes into .venv/tools, from Debian, without installing.

    python3 scripts/tools.py

Only where there are apt-get and dpkg; what cannot be had is said, and its tests skip themselves.
Docker Compose reads a file without a Docker daemon. Debian 12 has its first version, in Python;
the second one, in Go, comes from the next Debian: asked for beside this system's lists, which stay.
"""

import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent / ".venv" / "tools"
WRAPPER = TOOLS / "docker-compose"
WRAPPER_2 = TOOLS / "docker-compose-2"

COMPOSE = "docker-compose"
NEXT_DEBIAN = "trixie"
PYTHON_PARTS = (
    *("attr", "certifi", "chardet", "charset-normalizer", "distro", "docker", "dockerpty"),
    *("docopt", "dotenv", "idna", "jsonschema", "packaging", "paramiko", "pyrsistent", "requests"),
    *("six", "texttable", "urllib3", "websocket", "yaml"),
)
"""What Debian 12's docker-compose, a Python program, imports; later ones are one binary."""


def main() -> int:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        print("tools: no apt-get and dpkg here; tests that need docker-compose skip themselves")
        return 0
    if not (WRAPPER.exists() or shutil.which(COMPOSE)):
        fetch_compose()
    if not WRAPPER_2.exists():
        fetch_compose_2()
    return 0


def fetch_compose() -> None:
    root = TOOLS / "root"
    if fetch(COMPOSE, root):
        if program(root).read_bytes().startswith(b"#!"):
            for part in PYTHON_PARTS:
                fetch(f"python3-{part}", root)
        write_wrapper(WRAPPER, root)
    else:
        print("tools: docker-compose cannot be fetched; its tests skip themselves")


def fetch_compose_2() -> None:
    root = TOOLS / "root-2"
    with tempfile.TemporaryDirectory() as folder:
        options = next_debian(Path(folder))
        if options and run(["apt-get", *options, "update", "-qq"], folder):
            fetch(COMPOSE, root, *options)
    if root.exists():
        write_wrapper(WRAPPER_2, root)
    else:
        print("tools: docker-compose 2 cannot be fetched; its tests skip themselves")


def next_debian(folder: Path) -> list[str]:
    """Return apt's options for lists of their own, from where this system's come; none: unknown."""
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    if not release or not sources.exists():
        return []
    for name in ("sources", "lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    text = sources.read_text(encoding="utf-8").replace(release, NEXT_DEBIAN)
    (folder / "sources" / "next.sources").write_text(text, encoding="utf-8")
    places = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": folder / "sources",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    return [word for name, value in places.items() for word in ("-o", f"{name}={value}")]


def fetch(package: str, root: Path, *options: str) -> bool:
    """Download a package and unpack it; its scripts do not run."""
    with tempfile.TemporaryDirectory() as folder:
        if not run(["apt-get", *options, "download", "-q", package], folder):
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


def write_wrapper(place: Path, root: Path) -> None:
    modules = root / "usr" / "lib" / "python3" / "dist-packages"
    place.write_text(f'#!/bin/sh\nPYTHONPATH={modules} exec {program(root)} "$@"\n')
    place.chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
