"""How long an engine is waited for: until it has started, and while it does not move."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tuner.engines import provenance
from tuner.engines.vllm.failure import last_line
from tuner.engines.vllm.log import said_since, size_of
from tuner.errors import EngineError, UsageError

START_ON_CPU_S = 600.0
START_S = 1800.0
"""With an accelerator: weights of hundreds of GB are read and graphs captured."""

_START = "TUNER_START_TIMEOUT"


def wait_for_starts(seconds: float) -> None:
    """Let every start, here or in a child, take so long at most: ``--start-timeout``."""
    os.environ[_START] = f"{seconds:g}"


def start_limit_s() -> float:
    """Return how long an engine may take to start. Raises UsageError for a variable that is no
    number of seconds."""
    asked = os.environ.get(_START)
    if asked is None:
        return START_ON_CPU_S if provenance.is_cpu_build() else START_S
    try:
        return float(asked)
    except ValueError:
        raise UsageError(
            f"{_START}: {asked!r} is not a number of seconds", hint="Give --start-timeout 10m."
        ) from None


@asynccontextmanager
async def started_in_time(log: Path) -> AsyncIterator[None]:
    """Cancel a start that takes longer than it may. Raises EngineError with vLLM's last words."""
    limit_s = start_limit_s()
    said_before = size_of(log)
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise EngineError(
            f"vLLM did not start within {limit_s:g} s; its last words: "
            f"{last_line(said_since(log, said_before))}",
            hint=f"Read {log}, or give it longer: --start-timeout {_longer(limit_s)}.",
        ) from None


def _longer(limit_s: float) -> str:
    return f"{max(1, round(3 * limit_s / 60))}m"
