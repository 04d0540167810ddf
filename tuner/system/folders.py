"""Check that nobody else can replace what a path leads to, as ssh does for authorized_keys."""

import os
import stat
from collections.abc import Collection
from pathlib import Path

from tuner.errors import TargetError


def safe(folder: Path, *, users: Collection[int]) -> Path:
    """Return the folder without links on the way, when only these users and root can change it.

    Every folder above it counts: whoever may rename one of them can put another in its place. A
    sticky one like /tmp is fine, because what lies in it stays its owner's. Raises TargetError with
    the first that is not safe, and OSError.
    """
    real = Path(os.path.realpath(folder, strict=True))
    for one in (*reversed(real.parents), real):  # from the top: what is checked stays so
        status = one.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise TargetError(f"{one}: is no folder", hint="Check the path.")
        if status.st_uid not in {*users, 0}:
            raise TargetError(
                f"{one}: belongs to another user ({status.st_uid})",
                hint=f"Use a folder of the server's own: install -d -m 700 -o {min(users)} …",
            )
        if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
            raise TargetError(f"{one}: others may replace what is in it", hint=f"chmod go-w {one}")
    return real


def make_own(folder: Path) -> None:
    """Make a folder inside that of a run, for its owner alone, or use the one that is there; a link
    in its place leads to somebody else's. Raises TargetError."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        is_folder = stat.S_ISDIR(folder.lstat().st_mode)
    except OSError as problem:
        raise TargetError(
            f"{folder}: cannot be made ({problem.strerror})", hint="Choose another --run-dir."
        ) from None
    if not is_folder:
        raise TargetError(
            f"{folder}: is a link, and no folder of the run", hint="Choose another --run-dir."
        )


def owner(folder: Path) -> int | None:
    """Return the user whose folder it is; None where others can write to it. Raises OSError."""
    status = folder.stat()
    return None if status.st_mode & 0o022 else status.st_uid
