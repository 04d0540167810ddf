"""Read the machine that we are on for ``checks.machine``."""

import errno
import os
from pathlib import Path

from tuner.engines import devices, gpus, provenance
from tuner.engines.checks.machine import Machine

_LOG = Path("/dev/kmsg")
_SHARED = Path("/dev/shm")  # noqa: S108 - looked at, not written to
_RECORD_BYTES = 8192


def machine_here(*, gpus_needed: int) -> Machine:
    """Read it, and of its GPUs those that an engine will take: the first that CUDA shows."""
    return Machine(
        accelerator=provenance.accelerator(),
        versions=provenance.versions(),
        driver=gpus.driver(),
        gpus=gpus.visible()[:gpus_needed],
        processes=devices.family(),
        shared_bytes=_free_bytes(_SHARED),
        xids=_xids(),
        lost=gpus.lost(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _free_bytes(folder: Path) -> int | None:
    try:
        told = os.statvfs(folder)
    except OSError:
        return None
    return told.f_bavail * told.f_frsize


def _xids() -> list[str] | None:
    """Return the driver's errors since the machine was started; None where nobody tells us."""
    try:
        log = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    found: list[str] = []
    try:
        while True:
            try:
                record = os.read(log, _RECORD_BYTES).decode(errors="replace")
            except OSError as problem:
                if problem.errno == errno.EPIPE:  # overwritten meanwhile: the next one follows
                    continue
                return found if problem.errno == errno.EAGAIN else None
            if "NVRM: Xid" in record:
                found.append(record.partition(";")[2].strip())
    finally:
        os.close(log)
