"""A dict of the last so many requests or sessions, in bounded memory. Pure."""

from collections import OrderedDict
from typing import Generic, TypeVar

MOST = 2**20

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """A dict of what was put there last; what is older than the last MOST keys is forgotten."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[str | int, Value] = OrderedDict()

    def get(self, key: object, default: Value) -> Value:
        return self._known.get(key, default) if isinstance(key, str | int) else default

    def put(self, key: str | int, value: Value) -> None:
        self._known[key] = value
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
