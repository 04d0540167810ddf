"""Run a command of tuner in children that die before their first, second, … use of the file system.

    python stopped.py TEMPLATE WORD…

Each child gets a copy of the folder TEMPLATE beside it, named by its number, and is killed there;
the first that ends by itself is the last. Only `open`, `rename` and their like are counted.
"""

import contextlib
import itertools
import os
import shutil
import signal
import sys
from pathlib import Path

from tuner import cli

USES = {"open", "os.rename", "os.remove", "os.link", "os.chmod", "fcntl.flock"}


def called(folder: Path, words: list[str]) -> None:
    """Run the command in ``folder``, as the program would."""
    os.chdir(folder)
    sys.argv = ["tuner", *words]
    cli.main()


def in_a_child(folder: Path, words: list[str], left: int) -> int:
    """Return how the command ended that is killed at its ``left``-th use of the file system."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def count(event: str, _: object) -> None:
        nonlocal left
        if event in USES:
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    called(folder, words)
    raise AssertionError


def main() -> None:
    template, words = Path(sys.argv[1]).resolve(), sys.argv[2:]
    with contextlib.suppress(SystemExit):  # so that the children need no import
        called(shutil.copytree(template, template.with_name("warm")), words)
    for number in itertools.count(1):
        folder = shutil.copytree(template, template.with_name(str(number)))
        if in_a_child(folder, words, number) != -signal.SIGKILL:
            return


if __name__ == "__main__":
    main()
