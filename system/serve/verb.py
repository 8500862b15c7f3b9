"""A page on this machine for searching clips with a trained model."""

import argparse
import asyncio
import errno
import logging
import signal
import socket
from ipaddress import ip_address
from pathlib import Path

from data_tools.errors import KitError
from system.runs.open import Trained, open_trained
from system.serve.search import Search, make_search, pool_of
from system.verbs.options import add_changes_argument, add_checkpoint_arguments

PATIENCE = 2  # seconds that answers under way are waited for at the end
IDLE = 75  # seconds after which a silent connection is closed

log = logging.getLogger(__name__)


def bound(host: str, port: int) -> socket.socket:
    """A socket that holds the address; whoever comes before it is served waits. KitError for a taken port and for an
    address that is not this machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise KitError(f"--host {host}: no such address; use 127.0.0.1, or an address of this machine") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen()
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRINUSE:
            raise KitError(f"port {port} of {host} is taken; end what serves there, or name another --port") from error
        raise KitError(f"--host {host} --port {port}: {error.strerror}; use another address or port") from error
    return found


def about_of(trained: Trained, search: Search) -> dict[str, object]:
    """What the page says of the model; the checkpoint without the score it was chosen by, which is of other clips."""
    facts, checkpoint = trained.facts, trained.facts.checkpoint.partition(",")[0]
    return {"recipe": facts.recipe, "run": facts.run, "checkpoint": checkpoint, "clips": len(search.clips)}


async def serve(search: Search, about: dict[str, object], host: str, listening: socket.socket) -> None:
    """Answer until SIGINT or SIGTERM."""
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
            log.warning("%s is no loopback address: whoever reaches this machine can search and hear the clips", host)
        site = f"[{host}]" if ":" in host else host
        print(f"{len(search.clips)} clips on http://{site}:{port}/ (Ctrl-C ends it)", flush=True)
        await stop.wait()
    finally:
        await runner.cleanup()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a run's folder, or an exported model")
    audio = "a manifest (.jsonl), or a folder of audio files (default: what the recipe ranks)"
    parser.add_argument("--audio", type=Path, help=audio)
    split = "of a manifest: only this split's clips (default: all, or what the recipe ranks)"
    parser.add_argument("--split", help=split)
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on (default: %(default)s, this machine)")
    parser.add_argument("--port", type=int, default=8020, help="0: any that is free (default: %(default)s)")
    add_checkpoint_arguments(parser)
    add_changes_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    if not 0 <= arguments.port <= 65_535:
        raise KitError(f"--port {arguments.port}: use 0 to 65535")
    with bound(arguments.host, arguments.port) as listening:  # a taken port is reported before anything is computed
        trained = open_trained(arguments.model, arguments.stage, arguments.checkpoint, arguments.set)
        clips = pool_of(trained.recipe, arguments.audio, arguments.split)
        log.info("embedding %d clips", len(clips))
        search = make_search(trained, clips)
        asyncio.run(serve(search, about_of(trained, search), arguments.host, listening))
    return 0
