"""Requests within the API's limits, by counting: no more than so many in any minute and in any day.

The API throttles by sliding windows: 60 requests a minute and 2,000 a day for a standard key
(https://freesound.org/docs/api/overview.html, "Throttling"). Here a request is counted until a minute, or a day, after
its answer, since it may have arrived at any time up to then; that keeps the limit however long requests are under way,
and costs that much time once a minute. The count is kept in a database, so that restarts and other processes that use
the same file share it.
"""

import asyncio
import logging
import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

MINUTE, DAY = 60.0, 86_400.0
_LOOK_AGAIN = 1.0  # seconds after which a wait is reckoned anew while requests are under way
UNANSWERED = 600.0  # seconds by which the answer of a request that was killed is taken to have come

log = logging.getLogger(__name__)


class Clock:
    """Seconds, `speed` times as fast as they pass: a stand-in for the API may run through days in minutes."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed

    def now(self) -> float:
        return time.time() * self.speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.speed)


@dataclass(frozen=True)
class Used:
    """Requests of the last minute and day, and the seconds until the next one may go."""

    minute: int
    day: int
    wait: float


class Quota:
    """Slots for requests. per_minute, per_day: the limits of the key."""

    def __init__(self, database: sqlite3.Connection, per_minute: int, per_day: int, clock: Clock) -> None:
        self._database = database
        self.per_minute, self.per_day = per_minute, per_day
        self._limits = ((per_minute, MINUTE), (per_day, DAY))
        self._clock = clock
        self._turn = asyncio.Lock()
        self._told = 0.0  # until when the user knows of a wait
        database.executescript(
            "CREATE TABLE IF NOT EXISTS requests (id INTEGER PRIMARY KEY, counted_to REAL NOT NULL);"
            "CREATE INDEX IF NOT EXISTS requests_counted_to ON requests (counted_to);"
            "CREATE TABLE IF NOT EXISTS pause (id INTEGER PRIMARY KEY CHECK (id = 0), until REAL NOT NULL);"
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    async def take(self) -> int:
        """Wait until a request may go, and count it. Returns what `answered` wants to be told."""
        async with self._turn:
            while True:
                with self._transaction():
                    now = self._clock.now()
                    wait = self._wait(now)
                    if wait <= 0:
                        self._database.execute("DELETE FROM requests WHERE counted_to <= ?", (now - DAY,))
                        return self._insert(now + UNANSWERED)
                self._tell(now, wait)
                # As long as it takes by what is known; an answer under way may shorten it.
                under_way = self._database.execute("SELECT 1 FROM requests WHERE counted_to > ?", (now,)).fetchone()
                await self._clock.sleep(min(wait, _LOOK_AGAIN) if under_way else wait)

    def answered(self, request: int) -> None:
        """The request's answer has come, or it is known that none will."""
        self._database.execute("UPDATE requests SET counted_to = ? WHERE id = ?", (self._clock.now(), request))

    def pause(self, seconds: float) -> None:
        """No request for so long: the API said that there were too many."""
        until = self._clock.now() + seconds
        self._database.execute(
            "INSERT INTO pause VALUES (0, ?) ON CONFLICT DO UPDATE SET until = max(until, excluded.until)", (until,)
        )

    def used(self) -> Used:
        now = self._clock.now()
        minute, day = (
            self._database.execute("SELECT COUNT(*) FROM requests WHERE counted_to > ?", (now - seconds,)).fetchone()[0]
            for _, seconds in self._limits
        )
        return Used(minute, day, max(0.0, self._wait(now)))

    def seconds_for(self, requests: int) -> float:
        """The least time that so many more requests take, from now."""
        used = self.used()
        today = max(0, self.per_day - used.day)
        if requests <= today:
            return used.wait + max(0, requests - self.per_minute + used.minute) / self.per_minute * MINUTE
        return math.ceil((requests - today) / self.per_day) * DAY

    def _tell(self, now: float, wait: float) -> None:
        if wait > 2 * MINUTE and now + wait > self._told + MINUTE:
            self._told = now + wait
            at = datetime.fromtimestamp(time.time() + wait / self._clock.speed, UTC)
            log.info("no request is left for now; goes on at %s UTC (it may be stopped meanwhile)", f"{at:%d %B %H:%M}")

    def _insert(self, counted_to: float) -> int:
        cursor = self._database.execute("INSERT INTO requests (counted_to) VALUES (?)", (counted_to,))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _wait(self, now: float) -> float:
        """Seconds until one more request is within both limits, and any pause is over."""
        paused = self._database.execute("SELECT until FROM pause").fetchone()
        free = [paused[0]] if paused else []
        for limit, seconds in self._limits:
            nth = self._database.execute(
                "SELECT counted_to FROM requests ORDER BY counted_to DESC LIMIT 1 OFFSET ?", (limit - 1,)
            ).fetchone()
            if nth:
                free.append(nth[0] + seconds)
        return max(free, default=now) - now
