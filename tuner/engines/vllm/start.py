"""Start engines of the kind ``vllm``. vLLM is imported when the first one is needed."""

import asyncio
import contextlib
import functools
import multiprocessing
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from tuner.engines import provenance
from tuner.engines.models import shipped as models
from tuner.engines.page import VARIABLE, Page
from tuner.engines.seam import RequestFailedError
from tuner.engines.vllm import process
from tuner.errors import EngineError
from tuner.system import files

if TYPE_CHECKING:
    from tuner.engines.arguments import Setting
    from tuner.engines.paged import PagedEngine
    from tuner.engines.seam import ArgumentValue, EngineFacts

START_ON_CPU_S = 600.0
START_S = 3600.0
"""With an accelerator: weights of hundreds of GB are read and graphs captured."""

_STARTS = count()

_KINDS = {
    "vllm": "tuner.engines.vllm.engine:VllmEngine",
    "serve": "tuner.engines.server:ServedEngine",
    "workers": "tuner.engines.workers:Workers",
}
"""Engines that are started with vLLM's arguments; the first imports vLLM."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Everything that an engine will run with, known before anything starts."""

    config: "Any"
    """vLLM's VllmConfig."""

    command: "dict[str, ArgumentValue]"
    """The arguments of ``vllm serve``, by vLLM's names, ``model`` among them."""

    facts: "EngineFacts"
    """What is known of the engine before it has started."""


@functools.cache
def _folder() -> Path:
    """Return this process's folder for temporary files: not below TMPDIR, which may be too long for
    the path of a socket."""
    return files.own_folder("vllm", "/tmp")  # noqa: S108 - a new folder in it


def default_log() -> Path:
    return _folder() / "vllm.log"


@dataclass(slots=True, eq=False)
class VllmStarter:
    """Starts vLLM engines that differ in ``max_num_seqs`` alone."""

    arguments: "Mapping[str, ArgumentValue]"
    """Engine arguments by vLLM's names, ``model`` among them."""

    log: Path = field(default_factory=default_log)
    """The file that vLLM's output goes to."""

    ranks: int = 1
    """Those of a data-parallel server, of which an engine is one."""

    sampling: Mapping[str, float] | None = None
    """What counts more than the model's generation configuration."""

    kind: str = "vllm"
    """``serve``: each behind a ``vllm serve`` of its own; ``workers``: see there."""

    workers: int = 1
    size: int = 1
    wait_s: float = 0.0
    """So many workers on one device, each with its share of the memory, serve so many requests
    together, or as many as come within this time of the first."""

    limits: "tuple[int, Mapping[str, ArgumentValue]]" = (0, {})
    """The server's own max_num_seqs, and what is the same for every cap: once resolved."""

    @property
    def given(self) -> "Mapping[str, ArgumentValue]":
        """The arguments that vLLM is given; all else is its own to choose. Read without vLLM."""
        return models.with_defaults(self.arguments)

    def resolve(self, *, max_num_seqs: int) -> "Mapping[str, ArgumentValue]":
        """See the seam. The first call imports vLLM, which takes ten seconds and more."""
        return self.resolved(max_num_seqs=max_num_seqs).facts.arguments

    def resolved(self, *, max_num_seqs: int) -> Resolved:
        """Return what an engine is started with. Imports vLLM."""
        with _vllm(self.arguments, self.log):
            from tuner.engines.vllm.config import configure  # noqa: PLC0415 - imports vLLM

            return configure(self, max_num_seqs)

    def server_max_num_seqs(self) -> tuple[int, bool]:
        """Return what a server takes that is started with these arguments and no word of tuner's,
        and whether they state it; vLLM's own default here where they do not, once resolved."""
        stated = self.arguments.get("max_num_seqs")
        return (stated, True) if isinstance(stated, int) else (self.limits[0], False)

    async def start(self, *, max_num_seqs: int) -> "PagedEngine":
        """See the seam. Failed or cancelled, nothing is left behind."""
        begun_s = asyncio.get_running_loop().time()
        resolved = await asyncio.to_thread(self.resolved, max_num_seqs=max_num_seqs)
        page = Page(_folder() / f"page-{next(_STARTS)}")
        processes = process.Processes(self.log, {VARIABLE: str(page.folder)})
        engine: PagedEngine = resolve_name(_KINDS[self.kind])(self, resolved, processes, page)
        try:
            async with started_in_time(processes):
                await engine.open()
            await engine.begin(begun_s)
        except BaseException as problem:
            processes.end()
            await engine.stop()
            if isinstance(problem, RequestFailedError):
                raise EngineError(
                    f"The first request failed: {problem}",
                    hint=f"Read {self.log}.",
                ) from problem
            raise
        return engine


def parse(settings: "Sequence[Setting]", *, model: str) -> "dict[str, ArgumentValue]":
    """Return what the settings are to the vLLM that is installed, as engine arguments.

    Raises InputError or UsageError with the place of what vLLM does not take.
    """
    with _vllm({"model": model}, default_log()):
        from tuner.engines.vllm import config  # noqa: PLC0415 - imports vLLM

        return config.parse(settings)


@contextlib.contextmanager
def _vllm(arguments: "Mapping[str, ArgumentValue]", log: Path) -> "Iterator[None]":
    """Let vLLM be imported for an engine, which then logs to ``log``. Raises EngineError for a vLLM
    that lacks what tuner needs."""
    if provenance.installed() is None:
        raise EngineError(
            "vLLM is not installed",
            hint="Run pip install 'tuner[vllm]' (NVIDIA) or 'tuner[cpu]', or use --world FILE.",
        )
    set_variables(arguments, log)
    with process.silent(log):
        provenance.check_vllm()
        try:
            yield
        except ImportError as error:
            raise EngineError(
                f"vLLM {provenance.installed()} cannot be used: {error}",
                hint=f"Install one of {provenance.SUPPORTED}.",
            ) from error


def set_variables(arguments: "Mapping[str, ArgumentValue]", log: Path) -> None:
    """Set what vLLM reads while it is imported; no variable that the user has set changes."""
    models.model_path(model := str(arguments["model"]))
    own, on_cpu = _folder(), provenance.is_cpu_build()
    # sockets there would stay behind elsewhere when a process of ours is killed
    multiprocessing.current_process()._config["tempdir"] = str(own)  # type: ignore[attr-defined]  # noqa: SLF001 - no other way
    variables = {
        **dict.fromkeys(("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY"), "1"),
        # its Pythons, and multiprocessing's, would import what lies in the folder we are run in
        "PYTHONSAFEPATH": "1",
        # as vllm serve does (cli_env_setup); else vLLM forks a process that has threads
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_RPC_BASE_PATH": str(own),
    }
    if on_cpu:
        # EngineCore computes itself, where there is one rank: a worker process beside it starts
        # ten seconds later and takes the cores that the server and its client need
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if on_cpu and models.is_shipped(model):  # OpenMP's barriers cost more than so small a model
        variables["OMP_NUM_THREADS"] = "1"
    if isinstance(token := arguments.get("hf_token"), str):
        variables["HF_TOKEN"] = token  # others read commands, and vLLM logs them
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    # with more threads importing starts some: not to be forked
    if on_cpu and os.environ.get("OMP_NUM_THREADS") == "1":
        process.preload(log)


@contextlib.asynccontextmanager
async def started_in_time(processes: process.Processes) -> "AsyncIterator[None]":
    """Cancel a start that takes too long. Raises EngineError with vLLM's last words."""
    limit_s = START_ON_CPU_S if provenance.is_cpu_build() else START_S
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        words = process.last_line(processes.text())
        raise EngineError(
            f"vLLM did not start within {limit_s:g} s; its last words: {words}",
            hint=f"Read {processes.log}: it waits for a download, or a process of it hangs.",
        ) from None
