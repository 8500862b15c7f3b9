"""Limits of requests.

Keeps requests within the API's limits by counting them: a maximum per minute and per day.

A standard key allows 60 requests in any minute and 2,000 in any day
(https://freesound.org/docs/api/overview.html, "Throttling"). The API counts a request when it arrives. This time is
unknown here: it is between the start of the request and its answer. A request is therefore counted from its start until
a minute (or a day) after its answer. So the limits are met however long requests take, with slightly fewer requests
than allowed. Previews do not count. The count is stored in a database, so that restarts and other processes that use
the same file share it.
"""

import asyncio
import logging
import math
import sqlite3
import time
from datetime import UTC, datetime
from typing import NamedTuple

MINUTE, DAY = 60.0, 86_400.0  # in the API's time, as all seconds here except stored ones
_LOOK_AGAIN = 1.0  # seconds between two computations of a wait while requests are under way
UNANSWERED = 600.0  # seconds after which a killed request counts as answered
SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (id INTEGER PRIMARY KEY, counted_to REAL NOT NULL);
CREATE INDEX IF NOT EXISTS requests_counted_to ON requests (counted_to);
CREATE TABLE IF NOT EXISTS pause (id INTEGER PRIMARY KEY CHECK (id = 0), until REAL NOT NULL);
"""

log = logging.getLogger(__name__)


class Clock:
    """The API's clock, `speed` times as fast as real time: a sandbox may run through days in minutes."""

    def __init__(self, speed: float = 1.0) -> None:
        """Set how many times faster than real time the API's clock runs; 1 is real time."""
        self.speed = speed

    def now(self) -> float:
        """Return real seconds since 1970."""
        return time.time()

    def wall_seconds(self, seconds: float) -> float:
        """Convert seconds of the API's clock to real seconds: fewer with a sandbox whose clock runs faster."""
        return seconds / self.speed

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds` of the API's clock, which may run faster than real time."""
        await asyncio.sleep(self.wall_seconds(seconds))


class Used(NamedTuple):
    """Numbers of requests in the last minute and day, and the seconds until the next one is allowed."""

    minute: int
    day: int
    wait: float


class Quota:
    """Limiter of requests: delays each one until the key's limits per minute and per day allow it."""

    def __init__(self, database: sqlite3.Connection, per_minute: int, per_day: int, clock: Clock) -> None:
        """Open the table of counted requests in the database, and set the limits of requests per minute and day."""
        self._database, self._clock = database, clock
        self.per_minute, self.per_day = per_minute, per_day
        self._limits = ((per_minute, MINUTE), (per_day, DAY))
        self._turn = asyncio.Lock()
        self._reported_until = 0.0  # end of the wait that the user was last informed of
        database.executescript(SCHEMA)

    async def take(self) -> int:
        """Wait until a request is allowed, count it, and return its id, which `mark_answered` needs."""
        async with self._turn:
            while True:
                with self._database:
                    self._database.execute("BEGIN IMMEDIATE")
                    now = self._clock.now()
                    self._correct_times(now)
                    wait = self._seconds_to_wait(now)
                    if wait <= 0:
                        return self._record_request(now)
                self._log_wait(now + self._clock.wall_seconds(wait), wait)
                # The longest wait that is known now; an answer under way may shorten it.
                under_way = self._database.execute("SELECT 1 FROM requests WHERE counted_to > ?", (now,)).fetchone()
                await self._clock.sleep(min(wait, _LOOK_AGAIN) if under_way else wait)

    def mark_answered(self, request: int) -> None:
        """Record that a request (its id from `take`) has been answered, or will never be answered."""
        self._database.execute("UPDATE requests SET counted_to = ? WHERE id = ?", (self._clock.now(), request))

    def pause(self, seconds: float) -> None:
        """Allow no request for `seconds`, because the API reported too many requests."""
        until = self._clock.now() + self._clock.wall_seconds(seconds)
        query = "INSERT INTO pause VALUES (0, ?) ON CONFLICT DO UPDATE SET until = max(until, excluded.until)"
        self._database.execute(query, (until,))

    def used(self) -> Used:
        """Return the numbers of requests in the last minute and day, and the seconds until the next one is allowed."""
        now, query = self._clock.now(), "SELECT COUNT(*) FROM requests WHERE counted_to > ?"
        begins = (now - self._clock.wall_seconds(span) for _, span in self._limits)
        minute, day = (self._database.execute(query, (begin,)).fetchone()[0] for begin in begins)
        return Used(minute, day, max(0.0, self._seconds_to_wait(now)))

    def seconds_for(self, requests: int) -> float:
        """Return the minimum time in seconds, from now, that `requests` more requests take."""
        used = self.used()
        today = max(0, self.per_day - used.day)
        if requests > today:
            return math.ceil((requests - today) / self.per_day) * DAY
        minutes, number = divmod(max(0, requests - 1), self.per_minute)
        waiting = number + 1 - (self.per_minute - used.minute)  # those that wait for an earlier minute's end
        wait = 0.0
        if requests and waiting > 0:
            now = self._clock.now()
            earlier = self._answer_time(used.minute - waiting, now) or now
            wait = max(0.0, (earlier - now) * self._clock.speed + MINUTE)
        return max(used.wait, wait + minutes * MINUTE)

    def _answer_time(self, skipped: int, now: float) -> float | None:
        """Return the time at which an earlier request was answered; None if too few requests are stored.

        skipped: 0 for the time of the newest request, 1 for that of the one before it, and so on.
        now: Current time.
        A request that is not answered yet counts as answered at the latest time at which its answer can arrive. The
        result is at most the time at which the answer to a request made now can arrive: a later time would be an error
        of the clock.
        """
        query = "SELECT min(counted_to, ?) FROM requests ORDER BY counted_to DESC LIMIT 1 OFFSET ?"
        row = self._database.execute(query, (now + self._clock.wall_seconds(UNANSWERED), skipped)).fetchone()
        return row[0] if row else None

    def _seconds_to_wait(self, now: float) -> float:
        """Return the seconds of API time until both limits allow one more request and any pause is over."""
        paused = self._database.execute(
            "SELECT min(until, ?) FROM pause", (now + self._clock.wall_seconds(DAY),)
        ).fetchone()
        free: list[float] = [now, *(paused or ())]
        for limit, seconds in self._limits:
            if (counted_to := self._answer_time(limit - 1, now)) is not None:
                free.append(counted_to + self._clock.wall_seconds(seconds))
        return (max(free) - now) * self._clock.speed

    def _correct_times(self, now: float) -> None:
        """Set request times that are impossibly late to `now`, and delete a pause that ends impossibly late.

        Such times were stored while the clock was ahead.
        """
        latest = now + self._clock.wall_seconds(UNANSWERED)
        self._database.execute("UPDATE requests SET counted_to = ? WHERE counted_to > ?", (now, latest))
        self._database.execute("DELETE FROM pause WHERE until > ?", (latest + self._clock.wall_seconds(DAY),))

    def _record_request(self, now: float) -> int:
        """Store a request that begins now, and return its id; delete requests that count no more."""
        before, latest = now - self._clock.wall_seconds(DAY), now + self._clock.wall_seconds(UNANSWERED)
        self._database.execute("DELETE FROM requests WHERE counted_to <= ?", (before,))
        cursor = self._database.execute("INSERT INTO requests (counted_to) VALUES (?)", (latest,))
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _log_wait(self, until: float, wait: float) -> None:
        """Log once that the API's limit stops requests until time `until`, if `wait` is more than two minutes."""
        if wait > 2 * MINUTE and until > self._reported_until + self._clock.wall_seconds(MINUTE):
            self._reported_until = until
            at = datetime.fromtimestamp(until, UTC)
            shown = f"{at:%d %B %H:%M}"
            log.info("the request limit is reached; continuing at %s UTC (you may stop the command until then)", shown)
