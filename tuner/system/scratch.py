"""Folders for what is needed only while we run, in the folder for temporary files.

Whoever makes one holds a lock on it. The kernel takes that back when the process ends, however it
does. So a folder that is not locked is nobody's any more, and is removed when the next one is made.
"""

import contextlib
import functools
import os
import shutil
import tempfile
from pathlib import Path

from tuner.system.files import lock

REMOVAL_S = 60.0
"""How long making a new folder may spend on removing those that were left behind."""


def new_folder(kind: str, place: str | None = None) -> Path:
    """Make a folder in ``place``, by default the one for temporary files. It is ours until the
    process ends."""
    where = Path(place or tempfile.gettempdir())
    for left in where.glob(f"tuner-{kind}-*"):
        _remove_if_left(left)
    while True:
        made = Path(tempfile.mkdtemp(prefix=f"tuner-{kind}-", dir=where))
        descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY)  # stays open
        with contextlib.suppress(OSError):  # no locks on this file system: then none is removed
            lock(descriptor, wait_s=REMOVAL_S)
        if made.exists():
            return made
        os.close(descriptor)  # somebody else was there between the two, and removed it


@functools.cache
def own_folder(kind: str) -> Path:
    """Return the one folder of this process for what is of this kind."""
    return new_folder(kind)


def _remove_if_left(folder: Path) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        closing.callback(os.close, descriptor)
        if os.fstat(descriptor).st_uid == os.geteuid() and lock(descriptor):
            shutil.rmtree(folder, ignore_errors=True)
