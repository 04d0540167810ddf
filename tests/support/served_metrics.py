"""A simulated server's /metrics over real HTTP, on a clock that nobody waits for."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Page = Callable[[float], str | None]
"""What is at /metrics at a time; None closes the connection without an answer."""


@contextmanager
def serving(page: Page, now_s: Callable[[], float], *, root: str | None = None) -> Iterator[str]:
    """Serve /metrics as it is at the clock's time, /version, and ``root`` at /v1/models."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = page(now_s()) if self.path == "/metrics" else '{"version": "0.32.0"}'
            if root is not None and self.path == "/v1/models":
                text = json.dumps({"data": [{"id": "m", "root": root}]})
            if text is None:
                self.close_connection = True
                return
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
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
