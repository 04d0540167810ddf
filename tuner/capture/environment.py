"""Read a recording's options from the environment: a server's command line has no room for them."""

import binascii
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import UsageError

TRACE_OUT = "TUNER_TRACE_OUT"
STATS_OUT = "TUNER_STATS_OUT"
MAX_MB = "TUNER_TRACE_MAX_MB"
MAX_FILES = "TUNER_TRACE_MAX_FILES"
BLOCK_SIZE = "TUNER_TRACE_BLOCK_SIZE"
PREFIX_IDS = "TUNER_TRACE_PREFIX_IDS"
KEY = "TUNER_TRACE_KEY"

MIN_KEY_BYTES = 16
_BLOCK_SIZES = (1, 2**20)


@dataclass(frozen=True, slots=True)
class Recording:
    """The options of a recording."""

    folder: Path
    max_bytes: int
    """Of one file; the next one then begins."""

    max_files: int
    """Of one process; the oldest of them makes room."""

    block_size: int
    prefix_ids: bool
    key: bytes
    """Of the keyed hashes. It is in no file, and gone with the process unless the user set it."""


def recording(environment: Mapping[str, str], *, out: str, default: str | None) -> Recording | None:
    """Return what ``environment`` asks for; None where it names no folder and there is no default.

    Raises UsageError for a value that cannot be used.
    """
    folder = environment.get(out) or default
    if not folder:
        return None
    prefix_ids = environment.get(PREFIX_IDS, "1")
    if prefix_ids not in {"0", "1"}:
        raise UsageError(f"{PREFIX_IDS}={prefix_ids}: neither 0 nor 1", hint="Leave it out for 1.")
    return Recording(
        folder=Path(folder),
        max_bytes=_number(environment, MAX_MB, 256, 1, 2**20) * 10**6,
        max_files=_number(environment, MAX_FILES, 16, 1, 10**6),
        block_size=_number(environment, BLOCK_SIZE, 16, *_BLOCK_SIZES),
        prefix_ids=prefix_ids == "1",
        key=_key(environment.get(KEY)),
    )


def _number(environment: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = environment.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
        raise UsageError(
            f"{name}={text[:40]}: no whole number from {least} to {most}",
            hint=f"Leave it out for {default}.",
        )
    return int(text)


def _key(text: str | None) -> bytes:
    if text is None:
        return secrets.token_bytes(32)
    try:
        key = binascii.unhexlify(text.strip())
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < MIN_KEY_BYTES:
        raise UsageError(
            f"{KEY}: not {2 * MIN_KEY_BYTES} or more hexadecimal digits",
            hint=f"Make one: export {KEY}=$(openssl rand -hex 32)",
        )
    return key
