"""Reads a stream of completions piece by piece: server-sent events, as in OpenAI's API. Pure."""

from typing import Annotated

import msgspec

MOST_EVENT_BYTES = 2**20

Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A count as a server may say it: a larger one could not even be told on."""

_DONE = b"[DONE]"


class StreamError(Exception):
    """An answer that is no stream of completions, or that says that the request failed."""


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: Tokens | None = None


class Usage(msgspec.Struct):
    """The counts that a server gives for a whole request."""

    completion_tokens: Tokens
    prompt_tokens: Tokens | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


_CHUNK = msgspec.json.Decoder(_Chunk)


class CompletionStream:
    """One reply. ``feed`` it what was read; the numbers tell how far it has come."""

    def __init__(self) -> None:
        self._rest = b""
        self.usage: Usage | None = None
        self.outputs = 0
        """Events that brought output so far."""

        self.has_empty_end = False
        """Whether its end came without text: some servers then send a token, others none."""

    def feed(self, data: bytes) -> int:
        """Return how many outputs the data holds. Raises StreamError."""
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > MOST_EVENT_BYTES:
            raise StreamError("no event ends: it is no stream of completions")
        brought = sum(map(self._read, events))
        self.outputs += brought
        return brought

    def _read(self, event: bytes) -> int:
        """Return 1 for an event that brings output."""
        lines = [line for line in event.split(b"\n") if line.startswith(b"data:")]
        if not lines:
            return 0  # a comment, which keeps a connection open
        said = b"\n".join(line[5:].strip() for line in lines)
        if said == _DONE:
            return 0
        try:
            chunk = _CHUNK.decode(said)
        except (msgspec.DecodeError, RecursionError) as problem:
            raise StreamError(f"no completion: {problem}") from None
        if bytes(chunk.error) != b"null":
            raise StreamError(bytes(chunk.error).decode(errors="replace"))
        if chunk.usage is not None:
            self.usage = chunk.usage
        if not chunk.choices:
            return 0
        if chunk.choices[0].finish_reason is None or chunk.choices[0].text:
            return 1
        self.has_empty_end = True
        return 0
