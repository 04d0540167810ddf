"""Lock an open file or folder: the system lets go with the process, however that ends."""

import fcntl
import time

PAUSE_S = 0.05


def lock(descriptor: int, *, wait_s: float = 0.0) -> bool:
    """Lock until the descriptor is closed; return False where another held it for so long.

    Raises OSError where the file system has no locks, as some network ones.
    """
    until_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(PAUSE_S)
        else:
            return True


def unlock(descriptor: int) -> None:
    """Let go at once, for a child too that was forked meanwhile and has the descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
