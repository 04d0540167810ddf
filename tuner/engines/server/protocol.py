"""The protocol of a live server's control socket: one line of JSON each way. Types only.

Both ends read strictly: whoever is at the other end may be anybody.
"""

import json
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tuner.engines.server.cap_schedule import CapSchedule, Digest, MaxNumBatchedTokens, MaxNumSeqs

VERSION: Final = 2
"""2: revisions are of one start of a server, and what is put back is named."""

MAX_LINE_BYTES = 64 * 2**10

Text = Annotated[str, Field(max_length=500)]
Name = Annotated[str, Field(min_length=1, max_length=64)]
Kind = Literal["request", "refused", "failed"]
"""Of a refusal: it is not understood, it must not be done, or it could not be done."""


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The server's answer instead of doing it."""

    def __init__(self, message: str, *, hint: str, kind: Kind = "refused") -> None:
        super().__init__(message)
        self.hint = hint
        self.kind: Kind = kind


class _Said(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Limits(_Said):
    """The limits of a scheduler: sequences at a time, and tokens in one iteration."""

    max_num_seqs: MaxNumSeqs
    max_num_batched_tokens: MaxNumBatchedTokens


class _Request(_Said):
    version: Literal[2]


class AskState(_Request):
    do: Literal["state"]


class _Change(_Request):
    revision: Name | None = None
    """The state's, as the one who asks has seen it; the change is refused if it is another now."""

    id: Name | None = None
    """Whatever the one who asks calls it; what has no name cannot be put back."""

    reason: Text = ""
    override: Annotated[list[Text], Field(max_length=20)] = []
    """What speaks against it, when it is done all the same."""


class SetLimits(_Change):
    do: Literal["set"]
    max_num_seqs: MaxNumSeqs
    max_num_batched_tokens: MaxNumBatchedTokens | None = None
    profile: Digest | None
    """None where tuner measures: then no profile says so."""

    idle: bool = False
    """Refuse it unless nothing runs or waits: what is measured has one limit from its start on."""


class SetSchedule(_Change):
    do: Literal["schedule"]
    schedule: CapSchedule


class ClearSchedule(_Change):
    do: Literal["clear_schedule"]


class RollBack(_Change):
    do: Literal["rollback"]


class PutBack(_Change):
    """Undo the change just made, be it a roll back: another rank of the same server failed."""

    do: Literal["put_back"]
    of: Name
    """Its ``id``: any other change stays."""


class ResetPrefixCache(_Request):
    """Forget every cached prefix; refused unless nothing runs or waits."""

    do: Literal["reset_prefix_cache"]


class TakeLog(_Request):
    """Return what was logged since the last time, the oldest first, and forget it.

    Nothing is logged before the first of these. Without ``go_on`` nothing is from then on.
    """

    do: Literal["take_log"]
    go_on: bool


Change = SetLimits | SetSchedule | ClearSchedule | RollBack | PutBack
Request = AskState | ResetPrefixCache | TakeLog | Change

_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="do")])


class _Told(BaseModel):
    """A newer server may say more."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class About(_Told):
    """The server, as it was started."""

    pid: int
    rank: int
    """Of this scheduler among those of a data-parallel server."""

    vllm: str
    arguments: dict[str, str | int | float | bool | None]
    """Engine arguments as resolved, by vLLM's names; only some."""

    device: dict[str, Any] | None
    """``devices.device_facts()`` of the server; None where it cannot tell."""

    kv_blocks: int | None = None
    """How many the engine has; None from a server that does not say."""

    unmodelled: list[str] = []
    """What it does that the model of vLLM's scheduler does not: see ``engines.scheduler``."""

    cautions: list[str] = []
    """What it can do and no replay asks for."""


class Ahead(_Told):
    """The next turn of a schedule."""

    begins: str
    """ISO 8601, in the schedule's zone."""

    max_num_seqs: int


class State(_Told):
    about: About
    built: Limits
    """What the server was started with, and the most that it can be set to."""

    limits: Limits
    running: int
    waiting: int
    in_flight: int = 0
    """Iterations that were scheduled and are not done."""

    schedule: CapSchedule | None
    next: Ahead | None
    revision: str
    """Another one after every change, and after every start of the server."""

    changes: int
    """How many can be rolled back."""

    audit: str
    problem: str | None
    """What failed since, for a reader of the server's log."""


class Served(_Told):
    """The time at which the engine had finished a request; seconds, monotonic clock."""

    request_id: str
    """The engine's own, which begins with the one that the server was given."""

    queued_s: float
    scheduled_s: float
    first_token_s: float
    last_token_s: float
    cached_tokens: int
    """Of its prompt, found in the prefix cache when it was scheduled first."""

    preemptions: int


class Log(_Told):
    """A part of what was logged."""

    rows: str
    """Base64 of rows of ``seam.ITERATION``, little-endian."""

    served: list[Served]
    lost: int
    """Rows and requests that nobody took in time."""

    more: bool
    """Whether there is more to take."""


class Answer(_Told):
    """``state`` is as it is now; ``before`` is set where something was to be changed."""

    ok: bool
    log: Log | None = None
    state: State | None = None
    before: Limits | None = None
    changed: bool = False
    kind: Kind = "failed"
    error: str = ""
    hint: str = ""


def parse(line: bytes) -> Request:
    """Return the request of a line. Raises Refused with what is wrong."""
    if len(line) > MAX_LINE_BYTES:
        raise Refused(
            f"the request is longer than {MAX_LINE_BYTES} bytes",
            hint="Send one line.",
            kind="request",
        )
    said = strict_json(line)
    version = said.get("version", VERSION) if isinstance(said, dict) else VERSION
    if version != VERSION:
        raise Refused(
            f"the request is of version {ascii(version)[:20]}, and this server speaks {VERSION}",
            hint="Ask with the tuner that is installed where the server is.",
            kind="request",
        )
    try:
        return _REQUEST.validate_python(said)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Refused(
            f"the request cannot be used: {place + ': ' if place else ''}{first['msg']}",
            hint="docs/live.md has the protocol.",
            kind="request",
        ) from None


def strict_json(line: bytes) -> object:
    """Read one JSON value; no key twice. Raises Refused."""
    try:
        return json.loads(line.decode("utf-8"), object_pairs_hook=_no_key_twice)
    except (ValueError, RecursionError) as problem:
        raise Refused(
            f"not one line of JSON: {str(problem)[:200]}", hint="Send one object.", kind="request"
        ) from None


def line_of(said: BaseModel) -> bytes:
    """Return it as it goes over the socket: ASCII, and no line end but the last."""
    return json.dumps(said.model_dump(mode="json")).encode("ascii") + b"\n"


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found
