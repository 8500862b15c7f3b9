"""Imitate Freesound.

A stand-in for Freesound on this machine, for trying the tools without a key, and for their tests.
"""

import argparse
import asyncio
import logging
import os
import random
import shlex
import signal
import sys
from pathlib import Path

from data_tools.errors import DataError
from data_tools.freesound.access import ADDRESS, KEY, LIMITS, PER_DAY, PER_MINUTE, TOKEN, check_bounds
from data_tools.freesound.quota import Clock
from data_tools.freesound.sounds import PAGE_SIZE
from data_tools.sandbox.answers import Answers, Change
from data_tools.sandbox.corpus import Catalogue
from data_tools.sandbox.faults import KINDS, Faults, Throttle

MAX_SOUNDS = 760_000
KEY_VALUE = "sandbox-key"

log = logging.getLogger(__name__)


def make_answers(sounds: int, seed: int, nulls: float, churn: int, poison: float = 0.0) -> Answers:
    """Return a simulated API with `sounds` invented sounds.

    Args:
        nulls: Share of sounds that the API returns as null.
        poison: Share of sounds that make every page with them fail.
        churn: Number of sounds that disappear, and of others that appear, during the first crawl.
    """
    rng = random.Random(seed)
    corpus = Catalogue(sounds, seed)
    numbers = rng.sample(range(sounds), 2 * churn)
    last = max(1, sounds // PAGE_SIZE)
    changes = [Change(rng.randint(1, last), number, there=index % 2 == 0) for index, number in enumerate(numbers)]
    return Answers(corpus, nulls, tuple(sorted(changes)), poison)


async def _serve(arguments: argparse.Namespace) -> int:
    """Run the sandbox server until it is stopped, or until the given commands have ended; return the exit status."""
    from aiohttp import web

    from data_tools.sandbox.server import TOKEN as TOKEN_VALUE
    from data_tools.sandbox.server import Sandbox

    answers = make_answers(arguments.sounds, arguments.seed, arguments.nulls, arguments.churn, arguments.poison)
    answers.seen = arguments.indexed
    faults = Faults(_rates(arguments), arguments.seed)
    per_minute, per_day = (None, None) if arguments.no_throttle else (arguments.per_minute, arguments.per_day)
    sandbox = Sandbox(answers, KEY_VALUE, faults, Throttle(per_minute, per_day, Clock(arguments.speed)))
    # Some answers hang deliberately.
    runners = [web.AppRunner(app, access_log=None, shutdown_timeout=0.5) for app in (sandbox.cdn(), sandbox.app())]
    try:
        for runner, port in zip(runners, (0, arguments.port), strict=True):
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
        answers.cdn, address = (f"http://127.0.0.1:{runner.addresses[0][1]}" for runner in runners)
        settings = {ADDRESS: address, KEY: KEY_VALUE, TOKEN: TOKEN_VALUE}
        if arguments.then:
            return await _run_all(arguments.then, settings)
        print(f"{arguments.sounds} invented sounds on {address}; for the other verbs, in another shell:", flush=True)
        print(f"export {' '.join(f'{name}={value}' for name, value in settings.items())}", flush=True)
        await _wait_for_stop()
        print(f"{answers.requests} searches answered")
        return 0
    finally:
        for runner in runners:
            await runner.cleanup()


def _rates(arguments: argparse.Namespace) -> dict[str, float]:
    """Return a dict from kind of fault to its probability, as the options set it."""
    rates = dict.fromkeys(KINDS, arguments.storm)
    for text in arguments.fault:
        kind, _, rate = text.partition("=")
        try:
            rates[kind] = float(rate)
        except ValueError:
            raise DataError(f"--fault {text}: expects KIND=SHARE, such as 500=0.05") from None
    return rates


async def _run_all(commands: list[str], environment: dict[str, str]) -> int:
    """Run commands of data_tools in sequence until one fails; return its exit status, or 0 if all succeed.

    environment: Additional environment variables.
    """
    home = str(Path(__file__).parents[2])  # the package may only be importable from the working folder
    environment = environment | {"PYTHONPATH": os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))}
    for command in commands:
        log.info("running lbar data %s", command)
        argv = [sys.executable, "-m", "data_tools", *shlex.split(command)]
        process = await asyncio.create_subprocess_exec(*argv, env=os.environ | environment)
        try:
            status = await process.wait()
        except asyncio.CancelledError:
            process.send_signal(signal.SIGINT)
            await process.wait()
            raise
        if status:
            return status if status > 0 else 1
    return 0


async def _wait_for_stop() -> None:
    """Wait until Ctrl-C or a signal stops the server."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `sandbox` to its parser."""
    add = parser.add_argument
    add("--sounds", type=int, default=2000, help="number of invented sounds (default: %(default)s)")
    add("--seed", type=int, default=1, help="random seed of the invented sounds (default: %(default)s)")
    add("--port", type=int, default=8025, help="port of the server; 0: any free port (default: %(default)s)")
    add("--per-minute", type=int, default=PER_MINUTE, help="maximum requests per minute (default: %(default)s)")
    add("--per-day", type=int, default=PER_DAY, help="maximum requests in 24 hours (default: %(default)s)")
    add("--no-throttle", action="store_true", help="do not limit the number of requests")
    add("--speed", type=float, default=1.0, help="divide the minute and the day of the limits by this factor")
    add(
        "--fault",
        action="append",
        default=[],
        metavar="KIND=SHARE",
        help=f"share of requests with a fault of this kind: {', '.join(KINDS)}",
    )
    add(
        "--storm",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of requests that fail, for each kind of fault; --fault sets another share for one kind",
    )
    add("--nulls", type=float, default=0.0, metavar="SHARE", help="share of sounds that every search returns as null")
    add(
        "--poison",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of sounds that break searches: a page with such a sound fails",
    )
    add(
        "--indexed",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="share of sounds that searches find (default: 1, all)",
    )
    add("--churn", type=int, default=0, help="number of sounds deleted during a crawl; equally many are added")
    then = "run these commands of data_tools against the sandbox, one after the other, then stop"
    add("--then", nargs="+", metavar="COMMAND", help=then)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `sandbox`: serve invented sounds as Freesound's API does; return the exit status."""
    check_bounds(
        arguments,
        sounds=(1, MAX_SOUNDS),
        seed=(0, 2**32 - 1),
        port=(0, 65_535),
        nulls=(0, 1),
        poison=(0, 1),
        indexed=(0, 1),
        **LIMITS,
    )
    if not 0 <= 2 * arguments.churn <= arguments.sounds:
        raise DataError(f"--churn {arguments.churn}: must be from 0 to half of --sounds")
    for command in arguments.then or ():
        try:
            shlex.split(command)
        except ValueError as error:
            raise DataError(f"--then {command!a}: {error}; quote it as a shell would") from None
    return asyncio.run(_serve(arguments))
