"""Start engines of the kind ``vllm``. vLLM is imported when the first one is needed."""

import asyncio
import contextlib
import functools
import importlib.util
import multiprocessing
import os
import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.engines import provenance
from tuner.engines.models import shipped as models
from tuner.engines.page import VARIABLE, Page
from tuner.engines.vllm import core_process, supported
from tuner.engines.vllm.failure import Since, last_line, silent
from tuner.errors import EngineError
from tuner.system import files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from tuner.engines.seam import ArgumentValue, Engine
    from tuner.engines.vllm.config import ServerLimits
    from tuner.engines.vllm.flags import Setting

START_ON_CPU_S = 600.0
START_S = 3600.0
"""With an accelerator: weights of hundreds of GB are read and graphs captured."""

_STARTS = count()

_LONGEST_TMPDIR = 40
"""Bytes: Linux allows the path of a socket 107, of which vLLM's names take 36, and our folder's."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Everything that an engine will run with, known before anything starts."""

    config: "Any"
    """vLLM's VllmConfig."""

    given: "dict[str, ArgumentValue]"
    """What was stated, by vLLM's names: all the rest is vLLM's to decide."""

    arguments: "dict[str, ArgumentValue]"
    """All of them as resolved: what a deployment needs to run the same."""

    command: "dict[str, ArgumentValue]"
    """The arguments of ``vllm serve``, by vLLM's names, ``model`` among them."""

    environment: dict[str, str]
    """What it gets so that nobody else sees it."""

    max_model_len: int
    vocab_size: int
    by_priority: bool
    sampling: dict[str, float]
    """How tokens are drawn while it is measured."""


class VllmStarter:
    """Starts vLLM engines that differ in ``max_num_seqs`` alone.

    ``arguments`` are engine arguments by vLLM's names, ``model`` among them. vLLM's output goes to
    the file ``log``, by default one in the folder for temporary files. ``ranks`` are those of a
    data-parallel server, of which an engine is one; ``sampling`` counts more than the model's
    generation configuration.
    """

    def __init__(
        self,
        arguments: "Mapping[str, ArgumentValue]",
        *,
        log: Path | None = None,
        ranks: int = 1,
        sampling: "Mapping[str, float] | None" = None,
    ) -> None:
        self.arguments, self.ranks, self.sampling = dict(arguments), ranks, dict(sampling or {})
        self._server_limits: ServerLimits | None = None
        self.log = log if log is not None else default_log()

    @property
    def given(self) -> "Mapping[str, ArgumentValue]":
        """The arguments that vLLM is given; all else is its own to choose. Read without vLLM."""
        return models.with_defaults(self.arguments, on_cpu=provenance.is_cpu_build())

    def resolve(self, *, max_num_seqs: int) -> "Mapping[str, ArgumentValue]":
        """See the seam. The first call imports vLLM, which takes ten seconds and more."""
        return self.resolved(max_num_seqs=max_num_seqs).arguments

    def resolved(self, *, max_num_seqs: int) -> Resolved:
        """Return what an engine is started with. Imports vLLM."""
        with _vllm(str(self.arguments["model"]), self.log):
            from tuner.engines.vllm import config  # noqa: PLC0415 - imports vLLM

            if self._server_limits is None:
                self._server_limits = config.server_limits(self.given)
            given = {**self.given, **self._server_limits.fixed, "max_num_seqs": max_num_seqs}
            return config.configure(self.arguments, given, ranks=self.ranks, sampling=self.sampling)

    def server_max_num_seqs(self) -> tuple[int, bool]:
        """Return what a server takes that is started with these arguments and no word of tuner's,
        and whether they state it; vLLM's own default here where they do not."""
        stated = self.arguments.get("max_num_seqs")
        if isinstance(stated, int):
            return stated, True
        self.resolved(max_num_seqs=1)
        assert self._server_limits is not None
        return self._server_limits.max_num_seqs, False

    async def start(self, *, max_num_seqs: int) -> "Engine":
        """See the seam. A cancelled start leaves nothing behind either."""
        begun_s = asyncio.get_running_loop().time()
        resolved = await asyncio.to_thread(self.resolved, max_num_seqs=max_num_seqs)
        with _vllm(str(self.arguments["model"]), self.log):
            from tuner.engines.vllm.engine import VllmEngine  # noqa: PLC0415 - imports vLLM

        page = new_page()
        context = core_process.CoreContext(self.log, {VARIABLE: str(page.folder)})
        async with started_in_time(self.log):
            return await VllmEngine.start(resolved, context, page, begun_s)


def parse(settings: "Sequence[Setting]", *, model: str) -> "dict[str, ArgumentValue]":
    """Return what the settings are to the vLLM that is installed, as engine arguments.

    Raises InputError or UsageError with the place of what vLLM does not take.
    """
    with _vllm(model, default_log()):
        from tuner.engines.vllm import config  # noqa: PLC0415 - imports vLLM

        return config.parse(settings)


def new_page() -> Page:
    """Return the page of an engine that is to start."""
    return Page(_folder() / f"page-{next(_STARTS)}")


def default_log() -> Path:
    return _folder() / "vllm.log"


@functools.cache
def _folder() -> Path:
    """Return this process's folder for temporary files, not below a TMPDIR too long for sockets."""
    place = tempfile.gettempdir()
    is_short = len(os.fsencode(place)) <= _LONGEST_TMPDIR
    return files.own_folder("vllm", place if is_short else "/tmp")  # noqa: S108 - a new folder in it


@contextlib.contextmanager
def _vllm(model: str, log: Path) -> "Iterator[None]":
    """Let vLLM be imported for a model, which then logs to ``log``. Raises EngineError for a vLLM
    that lacks what tuner needs."""
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(
            "vLLM is not installed",
            hint="Run pip install 'tuner[vllm]' (NVIDIA) or 'tuner[cpu]', or use --world FILE.",
        )
    set_variables(model, log)
    with silent(log):
        supported.check_once()
        try:
            yield
        except ImportError as error:
            raise EngineError(
                f"vLLM {supported.installed()} cannot be used: {error}",
                hint=f"Install one of {supported.statement()}.",
            ) from error


def set_variables(model: str, log: Path) -> None:
    """Set what vLLM reads while it is imported; no variable that the user has set changes."""
    models.model_path(model)
    own = _folder()
    own.mkdir(mode=0o700, exist_ok=True)  # it may have been cleared
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
    if provenance.is_cpu_build():
        # EngineCore computes itself, where there is one rank: a worker process beside it starts
        # ten seconds later and takes the cores that the server and its client need
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if models.is_shipped(model):  # OpenMP's barriers cost more than so small a model
            variables["OMP_NUM_THREADS"] = "1"
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    # with more threads importing starts some: not to be forked
    if provenance.is_cpu_build() and os.environ.get("OMP_NUM_THREADS") == "1":
        core_process.preload(log)


@contextlib.asynccontextmanager
async def started_in_time(path: Path) -> "AsyncIterator[None]":
    """Cancel a start that takes too long. Raises EngineError with vLLM's last words."""
    limit_s, log = START_ON_CPU_S if provenance.is_cpu_build() else START_S, Since(path)
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise EngineError(
            f"vLLM did not start within {limit_s:g} s; its last words: {last_line(log.text())}",
            hint=f"Read {path}: what it waits for may be a download, or a process that hangs.",
        ) from None
