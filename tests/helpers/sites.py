"""A web server on this machine, for tests of downloads and uploads."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Quiet(BaseHTTPRequestHandler):
    """Writes no log."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Server(ThreadingHTTPServer):
    """Accepts all connections of a test: one that does not fit into the queue is tried again after a second."""

    request_queue_size = 64


@contextmanager
def serving(handler: Callable[..., Any]) -> Iterator[str]:
    """The address of a local server."""
    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
