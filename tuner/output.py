"""Files of any size that appear whole or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tuner.errors import TargetError
from tuner.files import resolve


@contextlib.contextmanager
def whole_file(path: Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """Write to a file beside ``path`` that takes its name when the block ends without an error.

    An existing file stays as it is, and TargetError is raised, unless ``force``. The check is made
    before the block and again at the end, in one step with the naming.
    """
    real = resolve(path)
    if real.exists() and not force:
        raise _exists(path)
    part = real.with_name(f".tuner-{secrets.token_hex(8)}.tmp")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if force:
            part.replace(real)
        else:
            real.hardlink_to(part)
        _sync_directory(real.parent)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as problem:
        raise TargetError(
            f"{path}: cannot be written: {(problem.strerror or str(problem)).lower()}",
            hint="Make room there, or choose another place with -o.",
        ) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _exists(path: Path) -> TargetError:
    return TargetError(f"{path}: already there", hint="Overwrite it with --force.")


def _sync_directory(directory: Path) -> None:
    """Make the new name itself survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
