"""A simulated server's /metrics over real HTTP, on a clock that nobody waits for."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.live_sim import NAMES, SimulatedServer, exposition

Page = Callable[[float], str | None]
"""What is at /metrics at a time; None closes the connection without an answer, and after a text
that begins with 1 it is closed before all of it was sent."""


@dataclass(slots=True)
class FreeClock:
    """Time passes only where somebody sleeps."""

    at_s: float = 0.0
    at_wake: dict[float, Callable[[], None]] = field(default_factory=dict)
    """What happens at a time."""

    def now_s(self) -> float:
        return self.at_s

    def sleep_until(self, at_s: float) -> None:
        self.at_s = max(self.at_s, at_s)
        for due_s in [each for each in self.at_wake if each <= self.at_s]:
            self.at_wake.pop(due_s)()


@contextmanager
def serving(page: Page, clock: FreeClock, *, root: str | None = None) -> Iterator[str]:
    """Serve /metrics as it is at the clock's time, /version, and ``root`` at /v1/models."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = page(clock.now_s()) if self.path == "/metrics" else '{"version": "0.32.0"}'
            if root is not None and self.path == "/v1/models":
                text = json.dumps({"data": [{"id": "m", "root": root}]})
            if text is None:
                self.close_connection = True
                return
            body = text.encode()
            more = 1000 if text.startswith("\x01") else 0
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + more))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def page_of(server: SimulatedServer, names: Mapping[str, str] = NAMES) -> Page:
    return lambda at_s: exposition({"0": server.scrape(at_s)}, names=names)
