"""The messages in the queues between tuner and its worker processes. Types only.

Times are the machine's monotonic clock, which all its processes share.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tuner.engines.seam import ArgumentValue


class Prompt(NamedTuple):
    number: int
    sent_s: float
    token_ids: tuple[int, ...]
    output_length: int


class Order(NamedTuple):
    """Something to do between two batches."""

    number: int
    what: Literal["take_iterations", "reset_prefix_cache"]


class Completion(NamedTuple):
    """A prompt's reply, whole: what such a worker sends."""

    number: int
    output_tokens: int
    output_s: tuple[float, ...]
    """When the engine had each token."""

    read_s: float
    """How long the prompt took through the queue while the worker was waiting for it."""

    begun_s: float
    batch_done_s: float
    sent_s: float


class OrderResult(NamedTuple):
    """Of an order."""

    number: int
    value: bytes | bool


class Skipped(NamedTuple):
    """Nobody waits for this prompt any more."""

    number: int


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The first thing that a worker says."""

    arguments: Mapping[str, ArgumentValue]
    max_model_len: int
    vocab_size: int
    block_size: int
    kv_blocks: int
