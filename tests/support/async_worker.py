"""vLLM's worker for CPUs, as it is where batches are scheduled ahead: it computes at once, and
streams and events, which a CPU has not, do nothing. Imports vLLM, in the process of an engine."""

# mypy: allow-subclassing-any
# ruff: noqa: ANN401 - vLLM's objects are untyped where vLLM is not installed

import contextlib
from typing import Any

import torch
from vllm.v1.worker.cpu_worker import CPUWorker


class _Nothing:
    """Stands for a stream and for an event."""

    device = torch.device("cpu")

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def does_nothing(self, *_: Any, **__: Any) -> None:
        pass

    record = synchronize = wait = wait_event = wait_stream = does_nothing

    def query(self) -> bool:
        return True


class AsyncWorker(CPUWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cuda: Any = torch.cuda
        cuda.Event = cuda.Stream = _Nothing
        cuda.current_stream = _Nothing
        cuda.stream = contextlib.nullcontext
        super().__init__(*args, **kwargs)
