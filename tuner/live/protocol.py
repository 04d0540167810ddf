"""The protocol of a live server's control socket: one line of JSON each way. Types only."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

VERSION: Final = 3

MAX_LINE_BYTES = 64 * 2**10

LONGEST_REASON = 500

Positive = Annotated[int, Meta(ge=1, le=2**31)]
Kind = Literal["request", "refused", "failed"]
"""Of a refusal: it is not understood, it must not be done, or it could not be done."""


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The server's answer instead of doing it."""

    def __init__(self, message: str, *, hint: str, kind: Kind = "refused") -> None:
        super().__init__(message)
        self.hint = hint
        self.kind: Kind = kind


class Limits(Struct, frozen=True):
    """The limits of a scheduler: sequences at a time, and tokens in one iteration."""

    max_num_seqs: Positive
    max_num_batched_tokens: Positive


class AskState(Struct, frozen=True, tag_field="do", tag="state", forbid_unknown_fields=True):
    version: Literal[3] = VERSION


class SetLimits(Struct, frozen=True, tag_field="do", tag="set", forbid_unknown_fields=True):
    max_num_seqs: Positive
    max_num_batched_tokens: Positive | None = None
    """None leaves it as it is."""

    reason: Annotated[str, Meta(max_length=LONGEST_REASON)] = ""
    """For the server's log."""

    version: Literal[3] = VERSION


Request = AskState | SetLimits


class About(Struct, frozen=True):
    """The server, as it was started."""

    pid: int
    rank: int
    """Of this scheduler among those of a data-parallel server."""

    vllm: str
    arguments: dict[str, str | int | float | bool | None]
    """Engine arguments as resolved, by vLLM's names; only some."""

    device: dict[str, Any] | None
    """``devices.device_facts()`` of the server; None where it cannot tell."""


class State(Struct, frozen=True):
    about: About
    built: Limits
    """What the server was started with, and the most that it can be set to."""

    limits: Limits
    running: int
    waiting: int


class Answer(Struct, frozen=True):
    """``state`` is as it is now; ``before`` is set where limits were to be changed."""

    ok: bool
    state: State | None = None
    before: Limits | None = None
    kind: Kind = "failed"
    error: str = ""
    hint: str = ""


_REQUEST: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def parse(line: bytes) -> Request:
    """Return the request of a line. Raises Refused."""
    if len(line) > MAX_LINE_BYTES:
        raise Refused(
            f"the request is longer than {MAX_LINE_BYTES} bytes",
            hint="Send one line.",
            kind="request",
        )
    try:
        return _REQUEST.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise Refused(
            f"the request cannot be used: {ascii(str(problem))[1:-1][:200]}",
            hint="Ask with the tuner that is installed where the server is: docs/operating.md has "
            "the protocol.",
            kind="request",
        ) from None


def line_of(message: Struct) -> bytes:
    """Return a message as it goes over the socket."""
    return msgspec.json.encode(message) + b"\n"
