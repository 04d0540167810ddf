"""Lengths as a server tells its clients, for servers whose engine cannot be watched. Pure.

The request and the end of the answer are kept until the row is written; the row has none of their
text. Chunks of a stream are never counted as tokens: servers put several tokens into one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

MAX_BODY_BYTES = 4 * 2**20
"""Of a request or an answer; what is longer is not looked at, and its row lacks its lengths."""

MAX_OPEN_BYTES = 64 * 2**20
"""Of all requests and answers that are kept at one time; what comes then is not looked at."""

MAX_CHUNKS = 256
"""Chunks with a finish reason or with usage that are kept of one stream."""


class _Asked(msgspec.Struct):
    n: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    stream: Any = None
    priority: Any = None
    prompt: Any = None


class _Choice(msgspec.Struct):
    finish_reason: Any = None


class _Answered(msgspec.Struct):
    usage: Any = None
    choices: list[_Choice] = []


_asked = msgspec.json.Decoder(_Asked).decode
_answered = msgspec.json.Decoder(_Answered).decode


@dataclass(slots=True)
class Heard:
    """The facts that the wire told of one request; None where it did not."""

    n: int = 1
    max_tokens: int | None = None
    priority: int = 0
    token_ids: Sequence[int] | None = None
    input_length: int | None = None
    total_length: int | None = None
    """Generated tokens of all choices together."""

    cached_tokens: int | None = None
    finish_reason: str | None = None


@dataclass(slots=True)
class Room:
    """The bytes that may still be kept of all requests under way."""

    left_bytes: int = MAX_OPEN_BYTES

    def take(self, size: int) -> bool:
        """Take so many bytes; return False, and take none, where they are not left."""
        if size > self.left_bytes:
            return False
        self.left_bytes -= size
        return True


@dataclass(slots=True)
class Overheard:
    """The bytes that went over the wire for one request."""

    room: Room = field(default_factory=Room)
    taken_bytes: int = 0
    """Of the room."""

    request: bytearray = field(default_factory=bytearray)
    answer: bytearray = field(default_factory=bytearray)
    chunks: list[bytes] = field(default_factory=list)
    streamed: bool = False
    whole: bool = True
    """False once something was too long to keep, or there was no room."""

    usage: Any = None
    """What vLLM leaves in the request's state, also where the client asked for no usage."""

    @property
    def size(self) -> int:
        return len(self.request) + len(self.answer) + sum(map(len, self.chunks))

    def hear_request(self, body: bytes) -> None:
        self._keep(self.request, body)

    def hear_answer(self, body: bytes) -> bool:
        """Keep what tells lengths; return whether it was a piece of a stream with content."""
        if not self.streamed:
            self._keep(self.answer, body)
            return False
        tells = b'"usage"' in body or b'"finish_reason":"' in body
        if tells and len(self.chunks) < MAX_CHUNKS and self._takes(len(body)):
            self.chunks.append(body)
        return body.startswith(b"data: {")

    def told(self) -> Heard:
        """Return what all of it tells."""
        heard = Heard()
        _hear_request(self.request, heard)
        usage = self.usage
        for text in self._json_texts():
            try:
                answer = _answered(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            for choice in answer.choices:
                if isinstance(choice.finish_reason, str):
                    heard.finish_reason = choice.finish_reason[:40]
            # With continuous usage each chunk has that of its own choice: the last has the total.
            if isinstance(answer.usage, dict):
                usage = answer.usage
        heard.input_length = _count(_of(usage, "prompt_tokens", "input_tokens"))
        heard.total_length = _count(_of(usage, "completion_tokens", "output_tokens"))
        details = _of(usage, "prompt_tokens_details", "input_tokens_details")
        heard.cached_tokens = _count(_of(details, "cached_tokens"))
        return heard

    def _json_texts(self) -> list[bytes]:
        if not self.streamed:
            return [bytes(self.answer)] if self.whole else []
        events = b"\n".join(self.chunks).split(b"\n")
        return [event[6:] for event in events if event.startswith(b"data: {")]

    def _keep(self, kept: bytearray, body: bytes) -> None:
        if not self.whole:
            return
        if len(kept) + len(body) <= MAX_BODY_BYTES and self._takes(len(body)):
            kept += body
        else:
            self.whole = False
            kept.clear()

    def _takes(self, size: int) -> bool:
        taken = self.room.take(size)
        self.taken_bytes += size if taken else 0
        return taken

    def leaves(self) -> None:
        """Give the room back: the request is over, and what is kept of it is counted elsewhere."""
        self.room.take(-self.taken_bytes)
        self.taken_bytes = 0


def _hear_request(body: bytearray, heard: Heard) -> None:
    try:
        asked = _asked(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    heard.n = _count(asked.n) or 1
    for limit in (asked.max_output_tokens, asked.max_tokens, asked.max_completion_tokens):
        if (count := _count(limit)) is not None:
            heard.max_tokens = count
    heard.priority = asked.priority if type(asked.priority) is int else 0
    if isinstance(asked.prompt, list) and all(type(one) is int for one in asked.prompt):
        heard.token_ids = asked.prompt


def _of(record: Any, *names: str) -> Any:  # noqa: ANN401 - as above
    """Return the first of these that a dict or an object has."""
    for name in names:
        found = record.get(name) if isinstance(record, dict) else getattr(record, name, None)
        if found is not None:
            return found
    return None


def _count(value: Any) -> int | None:  # noqa: ANN401 - as above
    return value if type(value) is int and 0 <= value < 2**31 else None
