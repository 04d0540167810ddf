"""Start engines of the kind ``vllm``. vLLM is imported when the first one is needed."""

import asyncio
import contextlib
import importlib.util
import multiprocessing
import os
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.engines import provenance
from tuner.engines.models import shipped as models
from tuner.engines.page import VARIABLE, Page
from tuner.engines.timeouts import started_in_time
from tuner.engines.vllm import core_process, installed
from tuner.engines.vllm import log as vllm_log
from tuner.engines.vllm.supported import statement
from tuner.errors import EngineError
from tuner.system import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tuner.engines.seam import ArgumentValue, Engine
    from tuner.engines.vllm.config import ServerLimits
    from tuner.engines.vllm.flags import Setting


_STARTS = count()

_LONGEST_SOCKET = 107
"""Characters that Linux allows the path of a socket."""

_SOCKET_NAME = len("/") + 36
"""Characters that vLLM adds to the folder: a UUID."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Everything that an engine will run with, known before anything starts."""

    config: "Any"
    """vLLM's VllmConfig."""

    given: "dict[str, ArgumentValue]"
    """What was asked for, by vLLM's names: all the rest is vLLM's to decide."""

    arguments: "dict[str, ArgumentValue]"
    """All of them as resolved: what a deployment needs to run the same."""

    command: "dict[str, ArgumentValue]"
    """What ``vllm serve`` is told, by vLLM's names, ``model`` among them."""

    environment: dict[str, str]
    """What it is told so that nobody else sees it."""

    how: "dict[str, ArgumentValue]"
    """How it computes: what decides speed and is no argument of a deployment."""

    max_model_len: int
    vocab_size: int
    by_priority: bool
    sampling: dict[str, float]
    """How tokens are drawn while it is measured."""


class VllmStarter:
    """Starts vLLM engines that differ in ``max_num_seqs`` alone.

    ``arguments`` are engine arguments by vLLM's names, ``model`` among them. All that vLLM has to
    say goes to the file ``log``, by default one in the folder for temporary files. ``ranks`` are
    those of a data-parallel server, of which an engine is one; ``sampling`` counts more than the
    model's generation configuration.
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
    def asked(self) -> "Mapping[str, ArgumentValue]":
        """The arguments that vLLM is given; all else is its own to choose. Read without vLLM."""
        return models.with_defaults(self.arguments, on_cpu=provenance.is_cpu_build())

    def resolve(self, *, max_num_seqs: int) -> "Mapping[str, ArgumentValue]":
        """See the seam. The first call imports vLLM, which takes ten seconds and more."""
        return self.resolved(max_num_seqs=max_num_seqs).arguments

    def resolved(self, *, max_num_seqs: int) -> Resolved:
        """Return what an engine is started with. Imports vLLM."""
        _prepare(str(self.arguments["model"]), self.log)
        with _vllm(self.log):
            from tuner.engines.vllm import config  # noqa: PLC0415 - imports vLLM

            if self._server_limits is None:
                self._server_limits = config.server_limits(self.asked)
            return config.configure(
                self.arguments,
                self.asked,
                max_num_seqs=max_num_seqs,
                limits=self._server_limits,
                ranks=self.ranks,
                sampling=self.sampling,
            )

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
        with _vllm(self.log):
            from tuner.engines.vllm.engine import VllmEngine  # noqa: PLC0415 - imports vLLM

        page = new_page()
        context = core_process.CoreContext(self.log, {VARIABLE: str(page.folder)})
        async with started_in_time(self.log):
            return await VllmEngine.start(resolved, context, page, self.log, begun_s)

    def doing(self) -> "Callable[[], str]":
        """See the seam: by what vLLM says in its log from now on."""
        begun = vllm_log.size_of(self.log)
        return lambda: vllm_log.part_of_start(vllm_log.said_since(self.log, begun)) or ""


def parse(settings: "Sequence[Setting]", *, model: str) -> "dict[str, ArgumentValue]":
    """Return the engine arguments that the settings mean to the vLLM that is installed.

    Raises InputError or UsageError with the place of what vLLM does not take.
    """
    _prepare(model, default_log())
    with _vllm(default_log()):
        from tuner.engines.vllm import arguments as vllm_arguments  # noqa: PLC0415 - imports vLLM

        return vllm_arguments.parse(settings)


@contextlib.contextmanager
def _vllm(log: Path) -> "Iterator[None]":
    """Let vLLM be imported, which then logs to ``log``. Raises EngineError for one that has not
    what tuner needs."""
    with vllm_log.silent(log):
        installed.check_once()
        try:
            yield
        except ImportError as error:
            raise EngineError(
                f"vLLM {installed.here_is()} cannot be used: {error}",
                hint=f"Install one of {statement()}.",
            ) from error


def new_page() -> Page:
    """Return the page of an engine that is to start."""
    return Page(files.own_folder("vllm") / f"page-{next(_STARTS)}")


def default_log() -> Path:
    return files.own_folder("vllm") / "vllm.log"


def _prepare(model: str, log: Path) -> None:
    """Set what vLLM reads while it is imported; no variable that the user has set changes."""
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(
            "vLLM is not installed",
            hint="Run pip install 'tuner[vllm]' (NVIDIA) or 'tuner[cpu]', or use --world FILE.",
        )
    models.model_path(model)
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # Its Pythons, and those of multiprocessing, would import what lies in the folder we are run in.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    # As ``vllm serve`` does (cli_env_setup); else vLLM forks a process that has threads.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    # For sockets, which would stay behind when a process of ours is killed.
    own = files.own_folder("vllm")
    own.mkdir(mode=0o700, exist_ok=True)  # it may have been cleared
    multiprocessing.current_process()._config["tempdir"] = str(own)  # type: ignore[attr-defined]  # noqa: SLF001 - no other way
    if len(str(own)) + _SOCKET_NAME <= _LONGEST_SOCKET:
        os.environ.setdefault("VLLM_RPC_BASE_PATH", str(own))
    on_cpu = provenance.is_cpu_build()
    if on_cpu:
        # EngineCore computes itself, where there is one rank: a worker process beside it starts ten
        # seconds later and takes the cores that the server and its client need.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        if models.is_shipped(model):  # OpenMP's barriers cost more than so small a model
            os.environ.setdefault("OMP_NUM_THREADS", "1")
    if on_cpu and os.environ.get("OMP_NUM_THREADS") == "1":
        core_process.preload(log)  # with more, importing starts threads: not to be forked
