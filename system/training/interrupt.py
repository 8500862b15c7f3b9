"""Ctrl-C, and the SIGTERM of schedulers and torchrun, while a stage is trained: the state is saved first."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from system.compute.distributed import count


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: the state is saved."""


@contextmanager
def interruptible() -> Iterator[dict[str, bool]]:
    """The first Ctrl-C (or SIGTERM) is noted for the loop to see; a second one stops at once.

    Of several processes each gets one from the terminal and one from torchrun, which kills those that stay: there the
    second one is noted only.
    """
    asked = {"asked": False}

    def note(*_: object) -> None:
        asked["asked"] = True
        if count() == 1:
            for number in before:
                signal.signal(number, signal.default_int_handler)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, note)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not signal.SIG_IGN:  # as of a process that is about to end
                signal.signal(number, handler)
