"""Measure and print times."""

import time
from collections.abc import Callable, Sequence


def best_seconds(works: Sequence[Callable[[], object]], times: int) -> list[float]:
    """The shortest time of each, measured in turns, so that what else the machine does falls on all alike."""
    best = [float("inf")] * len(works)
    for work in works:
        work()
    for _ in range(times):
        for n, work in enumerate(works):
            began = time.perf_counter()
            work()
            best[n] = min(best[n], time.perf_counter() - began)
    return best


def report(name: str, ours: float, other: float, what: str) -> None:
    print(f"\n{name}: {ours * 1e3:.1f} ms, {what}: {other * 1e3:.1f} ms, ratio {other / ours:.2f}")
