"""The messages between tuner and its client process: msgpack, each after its length in bytes.

Times are on the machine's monotonic clock, which is the event loop's in both processes.
"""

import struct
from typing import Any

import msgspec

LENGTH = struct.Struct("<I")


class ServerAddress(msgspec.Struct, tag="target"):
    """Whom to ask: the first thing that a client is told. Not on its command line, which others
    may read."""

    url: str
    """Of the completions."""

    headers: dict[str, str]
    """The key, where there is one."""

    connect_s: float
    silence_s: float
    """So long nothing may come on any stream, once one has begun: then the server is stuck."""

    first_s: float
    """The same while none has begun."""


class Send(msgspec.Struct, tag="send"):
    """Send a request now."""

    number: int
    body: dict[str, Any]
    request_id: str
    outputs: int
    """How many it is to bring at most: a server that sends much more is not listened to."""


class Abandon(msgspec.Struct, tag="abandon"):
    """Close a request's connection: its client has given up."""

    number: int


Order = ServerAddress | Send | Abandon


class ClientReady(msgspec.Struct, tag="ready"):
    """From now on what is to be sent leaves at once."""


class Progress(msgspec.Struct, tag="progress"):
    """The outputs since the last report: of the first at once, of others now and then."""

    number: int
    sent_s: float
    seen_s: bytes
    """When something was read that brought output: float64, one after the other."""

    outputs: int
    """So far: each is taken for a token until the end says how many there were."""


NO_CONNECTION, BROKEN = "no connection", "the connection broke"
"""Beginnings of a problem after which the server may have gone."""


class Ended(msgspec.Struct, tag="ended"):
    """A request is over, or was abandoned."""

    number: int
    sent_s: float
    last_seen_s: bytes
    """As in ``Progress``: what has not been told yet."""

    outputs: int = 0
    tokens: int | None = None
    """As the server counts them; None where it did not come to that."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    problem: str = ""
    """Why this request failed."""

    status: int = 200
    is_stuck: bool = False
    """The server sends nothing to anybody any more."""


Report = ClientReady | Progress | Ended

_ENCODER = msgspec.msgpack.Encoder()
orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def framed(message: Order | Report) -> bytes:
    """Return a message as it goes over the socket."""
    content = _ENCODER.encode(message)
    return LENGTH.pack(len(content)) + content
