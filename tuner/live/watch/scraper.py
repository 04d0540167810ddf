"""A live server's /metrics, read at steady times."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tuner.errors import InputError
from tuner.live import prometheus
from tuner.live import server as live_server
from tuner.live.prometheus import ServerMetrics

GONE_S = 60.0
"""A server that has not answered for so long is gone; so is one that missed GONE_SCRAPES."""

GONE_SCRAPES = 5

STALLED_S = 120.0
"""A server in which requests run and no token comes for so long hangs."""

LEAST_TIMEOUT_S = 1.0
MOST_TIMEOUT_S = 10.0


class Clock(Protocol):
    """Seconds on one clock that never jumps."""

    def now_s(self) -> float: ...

    def sleep_until(self, at_s: float) -> None: ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep_until(self, at_s: float) -> None:
        while (left_s := at_s - self.now_s()) > 0:
            time.sleep(left_s)


@dataclass(frozen=True, slots=True)
class ScrapedServer:
    """The address to read, and the model, should the server have several."""

    url: str
    model: str | None = None

    def read(self, *, timeout_s: float = MOST_TIMEOUT_S) -> Mapping[str, ServerMetrics]:
        """Return what each engine says. Raises InputError, and UsageError for no address."""
        address = f"{live_server.base_of(self.url)}/metrics"
        text = live_server.get(address, timeout_s=timeout_s)
        engines = prometheus.parse_engines(text, source=address, model=self.model)
        models = {name for one in engines.values() for name in one.models}
        if self.model is None and len(models) > 1:
            raise InputError(
                f"{address}: {len(models)} models: {', '.join(sorted(models))[:100]}",
                hint=f"Choose one: --served-model {min(models)}",
            )
        return engines


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer, and when it was asked for: in the middle of the asking."""

    at_s: float
    engines: Mapping[str, ServerMetrics] | None
    """None where there was none."""

    problem: str = ""


def scrapes(
    server: ScrapedServer, *, every_s: float, for_s: float, clock: Clock
) -> Iterator[Scrape]:
    """Yield scrapes at steady times until ``for_s`` have passed.

    One that takes too long is missed; those whose time passed meanwhile are left out.
    """
    timeout_s = min(MOST_TIMEOUT_S, max(LEAST_TIMEOUT_S, every_s))
    begin_s = clock.now_s()
    place = 0
    while place * every_s <= for_s:
        clock.sleep_until(begin_s + place * every_s)
        asked_s = clock.now_s()
        engines, problem = None, ""
        try:
            engines = server.read(timeout_s=timeout_s)
        except InputError as error:
            problem = str(error)
        yield Scrape((asked_s + clock.now_s()) / 2, engines, problem)
        place = max(place + 1, int((clock.now_s() - begin_s) // every_s) + 1)


@dataclass(slots=True)
class Absence:
    """The time for which a server has not answered."""

    every_s: float
    missed: int = 0
    in_a_row: int = 0
    problem: str = ""
    _since_s: float | None = None
    """When it answered last; before that, when it was first asked."""

    def add(self, scrape: Scrape) -> bool:
        """Take a scrape in; return whether the server is gone."""
        if scrape.engines is not None:
            self._since_s, self.in_a_row = scrape.at_s, 0
            return False
        self.missed += 1
        self.in_a_row += 1
        self.problem = scrape.problem
        if self._since_s is None:
            self._since_s = scrape.at_s
        return self.in_a_row >= GONE_SCRAPES and scrape.at_s - self._since_s >= GONE_S


@dataclass(slots=True)
class Stall:
    """The time for which no token came although requests run."""

    _tokens: float | None = None
    _since_s: float = 0.0

    def add(self, at_s: float, engines: Mapping[str, ServerMetrics]) -> str:
        """Take in what a server said; return why it hangs, if it does."""
        running = sum(one.gauges.get("running", 0.0) for one in engines.values())
        tokens = [
            count
            for one in engines.values()
            for count in (
                one.counters.get("output_tokens"),
                one.distributions["itl_s"].count if "itl_s" in one.distributions else None,
            )
            if count is not None
        ]
        if not tokens or running <= 0 or sum(tokens) != self._tokens:
            self._tokens, self._since_s = sum(tokens), at_s
            return ""
        if at_s - self._since_s < STALLED_S:
            return ""
        return f"{running:.0f} requests run and no token came for {at_s - self._since_s:.0f} s"
