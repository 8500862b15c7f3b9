"""Serve the page at an address.

Serve the search page at an address of this machine until the process is stopped.
"""

import asyncio
import errno
import logging
import signal
import socket
from ipaddress import ip_address

from data_tools.cli import counted
from data_tools.errors import KitError
from system.ranking.base import Pool, Ranker
from system.serve.search import Search

PATIENCE = 2  # seconds that the server waits for unfinished answers when it stops
EXAMPLES = 4  # example queries on the page
IDLE = 75  # seconds after which a silent connection is closed

log = logging.getLogger(__name__)


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address of this machine, for the server. Raises KitError if impossible.

    The error is raised, for example, if the port is in use or if this machine does not have the address. Connections
    before the start of the server wait for it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise KitError(f"--host {host}: no such address; use 127.0.0.1, or an address of this machine") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise KitError(
                f"port {port} of {host} is in use; stop the program that uses it, or give another --port"
            ) from error
        raise KitError(
            f"--host {host} --port {port} cannot be used ({error.strerror}); use another address or port"
        ) from error
    return listener


def page_facts(search: Search) -> dict[str, object]:
    """Return the texts and numbers on the page: recipe, run and checkpoint of the model, numbers of clips, examples.

    The checkpoint is named without its validation score, because this score was measured on other clips.
    """
    facts = search.ranker.facts
    return {
        "recipe": facts.get("recipe"),
        "run": facts.get("from"),
        "checkpoint": str(facts.get("checkpoint", search.ranker.origin)).partition(",")[0],
        "clips": len(search.clips),
        "skipped": len(search.pool.skipped),
        "examples": search.examples(EXAMPLES),
        **search.ranker.meanings,
    }


def serve_search(ranker: Ranker, pool: Pool, host: str, listening: socket.socket) -> None:
    """Serve the page for a pool of clips until the process is stopped."""
    search = Search(ranker, pool)
    asyncio.run(serve(search, page_facts(search), host, listening))


async def serve(search: Search, about: dict[str, object], host: str, listening: socket.socket) -> None:
    """Answer the requests of browsers until the process gets SIGINT (Ctrl-C) or SIGTERM."""
    from aiohttp import web

    from system.serve.server import SearchPage, http_log

    address, port = listening.getsockname()[:2]
    local = ip_address(address).is_loopback
    page = SearchPage(search, about, frozenset({host.lower(), "localhost"}) if local else None)
    runner = web.AppRunner(
        page.app(), access_log=None, logger=http_log(), keepalive_timeout=IDLE, shutdown_timeout=PATIENCE
    )
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        if not local:
            log.warning(
                "%s is not a loopback address: everybody who reaches this machine can search and play the clips; "
                "leave out --host to serve this machine only",
                host,
            )
        site = f"[{host}]" if ":" in host else host
        print(f"{counted(len(search.clips), 'clip')} on http://{site}:{port}/ (stop with Ctrl-C)", flush=True)
        await stop.wait()
    finally:
        await runner.cleanup()
