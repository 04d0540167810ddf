"""Start, ask and close an AsyncLLM without the parts tuner has no use for. Imports vLLM."""

# mypy: allow-subclassing-any
# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import contextlib
import gc
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import utils as engine_utils
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import PrometheusStatLogger

from tuner.engines.vllm.core_process import CoreContext


class _NoStats(PrometheusStatLogger):
    """Stands where vLLM would put its Prometheus logger, which costs time at every iteration.

    A logger there must be, or requests would come back without the engine's own times.
    """

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def record(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def log_engine_initialized(self) -> None:
        pass


_CONSTRUCTING = threading.Lock()
"""For the time of a construction vLLM is given a context of ours, in a global of its own."""


class Llm(AsyncLLM):
    def __del__(self) -> None:
        """Do nothing: ``stop`` has done it; vLLM's own fails when the interpreter ends."""


def construct(config: Any, context: CoreContext) -> Llm:
    """Start EngineCore and what talks to it; blocks until it is ready."""
    with _CONSTRUCTING:
        return _construct(config, context)


def _construct(config: Any, context: CoreContext) -> Llm:
    theirs = engine_utils.get_mp_context
    engine_utils.get_mp_context = lambda: context
    try:
        llm: Llm = Llm.from_vllm_config(config, stat_loggers=[_NoStats], disable_log_stats=True)
        return llm
    finally:
        engine_utils.get_mp_context = theirs


def close(llm: Llm, *, timeout_s: float) -> None:
    """Let EngineCore end by itself for so long, then end it."""
    llm.shutdown(timeout=timeout_s)
    llm.engine_core.resources.ctx.destroy(linger=0)  # which vLLM leaves open


@contextlib.contextmanager
def letting_go() -> Iterator[None]:
    """Free the sockets and threads of a failed start, once the last name for it is deleted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def exactly(output_length: int, sampling: Mapping[str, float]) -> SamplingParams:
    """Return the sampling parameters for so many tokens, no more and no less, drawn so.

    As a server is asked: with min_tokens beside, vLLM would mask stop tokens in every iteration.
    """
    return SamplingParams(
        max_tokens=output_length,
        ignore_eos=True,
        **sampling,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
