"""Deliberate faults.

Deliberate faults of the sandbox: random, seeded, at the requested rates; and the throttle.
"""

import random
from collections import deque
from collections.abc import Mapping
from typing import Any

from data_tools.errors import DataError
from data_tools.freesound.quota import DAY, MINUTE, Clock

KINDS = ("429", "throttle", "500", "overload", "down", "proxy", "reset", "timeout", "truncate", "null", "partial")
_DAILY = 0.1  # share of the 429s that are about the daily limit


class Faults:
    """Random faults of requests.

    rates: Dict from kind of fault to the share of requests with this fault. Raises DataError for other kinds and
    invalid shares.
    """

    def __init__(self, rates: Mapping[str, float], seed: int) -> None:
        """Store the share of requests for each kind of fault. Raises DataError for unknown kinds and invalid shares."""
        if unknown := set(rates) - set(KINDS):
            raise DataError(f"unknown fault {sorted(unknown)[0]!r}; choose from {', '.join(KINDS)}")
        if any(not 0 <= rate <= 1 for rate in rates.values()) or sum(rates.values()) > 1:
            given = ", ".join(f"{kind}={rate:g}" for kind, rate in rates.items() if rate)
            raise DataError(
                f"--fault and --storm: the shares are {given}; they must be 0 or more, and at most 1 in total"
            )
        self._rates = dict(rates)
        self.rng = random.Random(seed)

    def draw(self) -> str | None:
        """Return the kind of fault to simulate for one request, drawn at random; None for no fault."""
        value = self.rng.random()
        for kind, rate in self._rates.items():
            if (value := value - rate) < 0:
                return kind
        return None

    def throttled(self) -> str:
        """Return the text of a 429 answer for a limit drawn at random: per day or per minute."""
        return _throttled_text("2000/day" if self.rng.random() < _DAILY else "60/minute")

    def with_nulls(self, results: list[Any]) -> list[Any]:
        """Return the items of a page, each replaced by null with a probability of one in ten."""
        return [None if self.rng.random() < 0.1 else item for item in results]

    def cut(self, body: bytes) -> bytes:
        """Return the beginning of an answer's body, cut at a random byte."""
        return body[: self.rng.randrange(len(body))]


class Throttle:
    """The API's limits by sliding windows; None: no limit."""

    def __init__(self, per_minute: int | None, per_day: int | None, clock: Clock) -> None:
        """Set the limits of requests per minute and per day; no request is counted yet."""
        self._limits = [
            (limit, clock.wall_seconds(seconds), f"{limit}/{name}")
            for limit, seconds, name in ((per_minute, MINUTE, "minute"), (per_day, DAY, "day"))
            if limit is not None
        ]
        self._clock = clock
        self._times: deque[float] = deque(maxlen=max((limit for limit, _, _ in self._limits), default=1))

    def refusal(self) -> str | None:
        """Return the text of a 429 answer if a limit of requests is reached; else count the request and return None."""
        now = self._clock.now()
        for limit, seconds, name in self._limits:
            if len(self._times) >= limit and self._times[-limit] > now - seconds:
                return _throttled_text(name)
        self._times.append(now)
        return None


def _throttled_text(limit: str) -> str:
    """Return the API's message about too many requests. limit: The exceeded limit, such as `60/minute`."""
    return f"Request was throttled because of exceeding a request limit rate ({limit})"
