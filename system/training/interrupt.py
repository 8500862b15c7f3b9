"""Save the state on Ctrl-C and SIGTERM.

Schedulers and torchrun send SIGTERM. Training then saves its state before the process ends.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from system.compute.distributed import process_count


class Interrupted(KeyboardInterrupt):
    """Raised after Ctrl-C or SIGTERM, once the state is saved."""


@contextmanager
def interruptible() -> Iterator[dict[str, bool]]:
    """Context manager that keeps Ctrl-C or SIGTERM from ending the process, so that training can save its state.

    The context manager yields a dict. The first signal sets its value "asked" to True. A second signal ends the process
    immediately. If several processes run, it does not, because each of them gets two signals: one from the terminal
    and one from torchrun. torchrun kills processes that do not end.
    """
    state = {"asked": False}

    def set_flag(*_: object) -> None:
        """Handle a signal: set the flag, so that training saves its state and ends."""
        state["asked"] = True
        if process_count() == 1:
            for number in handlers:
                signal.signal(number, signal.default_int_handler)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:
        signal.signal(number, set_flag)
    try:
        yield state
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:  # a process that is about to end ignores signals
                signal.signal(number, handler)
