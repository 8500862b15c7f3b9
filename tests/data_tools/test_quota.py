"""The quota on a virtual clock: never a request too many, hardly a second too late."""

import asyncio
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sandboxes import LoopClock, run_virtually

from data_tools.freesound.quota import DAY, MINUTE, UNANSWERED, Clock, Quota
from data_tools.sandbox.faults import Throttle


def open_quota(path: Path, per_minute: int = 60, per_day: int = 2000, speed: float = 1.0) -> Quota:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA synchronous = OFF")  # thousands of transactions that need not outlive a power cut
    return Quota(database, per_minute, per_day, LoopClock(speed))


def least_seconds(requests: int, per_minute: int, per_day: int) -> float:
    """Return the earliest time of the last of this many requests, the first at 0, if requests take no time."""
    times: list[float] = []
    for number in range(requests):
        bounds = [times[number - per_minute] + MINUTE] if number >= per_minute else []
        bounds += [times[number - per_day] + DAY] if number >= per_day else []
        times.append(max(bounds, default=0.0))
    return times[-1]


async def ask(quota: Quota, requests: int, workers: int, latency: Callable[[], float]) -> list[float]:
    """Make requests as a crawl does; returns their arrival times at the API, at any time between sending and answer."""
    rng = random.Random(1)
    left = iter(range(requests))
    arrivals = []

    async def work() -> None:
        for _ in left:
            slot = await quota.take()
            seconds = latency()
            arrivals.append(asyncio.get_running_loop().time() + seconds * rng.random())
            await asyncio.sleep(seconds)
            quota.mark_answered(slot)

    await asyncio.gather(*(work() for _ in range(workers)))
    return sorted(arrivals)


def test_minimum_time_of_a_number_of_requests_matches_hand_values() -> None:
    assert least_seconds(60, 60, 2000) == 0
    assert least_seconds(61, 60, 2000) == 60
    assert least_seconds(2000, 60, 2000) == 33 * 60
    assert least_seconds(2001, 60, 2000) == DAY
    assert least_seconds(3, 1, 2) == DAY


@pytest.mark.parametrize(
    ("requests", "per_minute", "per_day"),
    [pytest.param(2600, 60, 2000, marks=pytest.mark.slow), (700, 7, 130), (9, 1, 3), (50, 50, 50)],
)
def test_immediately_answered_requests_finish_in_the_shortest_time_the_quota_allows(
    tmp_path: Path, requests: int, per_minute: int, per_day: int
) -> None:
    quota = open_quota(tmp_path / "quota", per_minute, per_day)
    arrivals, _ = run_virtually(ask(quota, requests, 4, lambda: 0.0))
    least = least_seconds(requests, per_minute, per_day)
    assert least <= arrivals[-1] <= 1.001 * least + 1
    for limit, span in ((per_minute, MINUTE), (per_day, DAY)):
        assert all(later - earlier >= span for earlier, later in zip(arrivals, arrivals[limit:], strict=False))


def test_quota_limits_hold_for_requests_whose_answers_arrive_late(tmp_path: Path) -> None:
    rng = random.Random(0)
    quota = open_quota(tmp_path / "quota", 60, 400)
    arrivals, _ = run_virtually(ask(quota, 440, 8, lambda: rng.choice((0.1, 0.3, 2.0))))
    for limit, span in ((60, MINUTE), (400, DAY)):
        assert all(later - earlier >= span for earlier, later in zip(arrivals, arrivals[limit:], strict=False))
    assert arrivals[-1] <= 1.02 * least_seconds(440, 60, 400)


def test_requests_of_an_earlier_command_count_against_the_quota_of_the_next(tmp_path: Path) -> None:
    async def first() -> None:
        await ask(open_quota(tmp_path / "quota", 5, 100), 5, 1, lambda: 0.0)

    async def both() -> float:
        await first()
        other = open_quota(tmp_path / "quota", 5, 100)
        assert (other.used().minute, other.used().day, other.used().wait) == (5, 5, MINUTE)
        await ask(other, 1, 1, lambda: 0.0)
        return asyncio.get_running_loop().time()

    assert run_virtually(both())[0] == pytest.approx(MINUTE)


def test_request_of_a_killed_process_counts_as_answered_after_the_longest_possible_time(tmp_path: Path) -> None:
    async def killed() -> float:
        await open_quota(tmp_path / "quota", 1, 100).take()
        await open_quota(tmp_path / "quota", 1, 100).take()
        return asyncio.get_running_loop().time()

    assert run_virtually(killed())[0] == pytest.approx(UNANSWERED + MINUTE)


def test_long_api_pause_survives_a_restart_and_a_later_shorter_pause(tmp_path: Path) -> None:
    async def paused() -> float:
        open_quota(tmp_path / "quota").pause(DAY)
        quota = open_quota(tmp_path / "quota")
        quota.pause(MINUTE)  # a shorter one does not shorten it
        await quota.take()
        return asyncio.get_running_loop().time()

    assert run_virtually(paused())[0] == pytest.approx(DAY)


def test_clock_with_speed_1000_shows_the_current_time_and_waits_a_thousandth_as_long() -> None:
    assert abs(Clock(1000).now() - time.time()) < 60
    assert Clock(1000).wall_seconds(MINUTE) == 0.06


@pytest.mark.parametrize("speed", [0.5, 1000.0])
def test_quota_periods_scale_with_clock_speed(tmp_path: Path, speed: float) -> None:
    quota = open_quota(tmp_path / "quota", 7, 130, speed)
    arrivals, _ = run_virtually(ask(quota, 300, 4, lambda: 0.0))
    for limit, span in ((7, MINUTE / speed), (130, DAY / speed)):
        assert all(later - earlier >= 0.999 * span for earlier, later in zip(arrivals, arrivals[limit:], strict=False))
    least = least_seconds(300, 7, 130) / speed
    assert arrivals[-1] <= 1.001 * least + 1 / speed


def test_quota_stored_by_an_accelerated_clock_is_valid_for_a_clock_of_normal_speed(tmp_path: Path) -> None:
    async def both() -> float:
        await ask(open_quota(tmp_path / "quota", 60, 2000, 1000.0), 60, 1, lambda: 0.0)
        fast = open_quota(tmp_path / "quota", 60, 2000, 1000.0)
        assert fast.used().wait == pytest.approx(MINUTE, abs=0.01)
        fast.pause(DAY)
        assert open_quota(tmp_path / "quota").used().wait == pytest.approx(DAY / 1000, abs=0.01)
        quota = open_quota(tmp_path / "quota")
        await quota.take()
        return asyncio.get_running_loop().time()

    assert run_virtually(both())[0] == pytest.approx(DAY / 1000, abs=0.01)


@pytest.mark.parametrize("ahead", [2 * UNANSWERED, 10 * DAY, 1e12])
def test_stored_request_times_in_the_future_do_not_block_requests(tmp_path: Path, ahead: float) -> None:
    async def work() -> float:
        quota = open_quota(tmp_path / "quota", 5, 100)
        now = LoopClock().now()
        for _ in range(5):
            quota._database.execute("INSERT INTO requests (counted_to) VALUES (?)", (now + ahead,))
        assert quota.used().wait <= UNANSWERED + MINUTE
        quota.pause(ahead if ahead > 2 * DAY else 0)
        await ask(quota, 6, 1, lambda: 0.0)  # five as soon as those have counted for a minute, and one more
        return asyncio.get_running_loop().time()

    assert run_virtually(work())[0] == pytest.approx(2 * MINUTE, abs=0.01)


def test_time_estimate_for_further_requests_matches_hand_values(tmp_path: Path) -> None:
    async def work() -> None:
        quota = open_quota(tmp_path / "quota")
        assert quota.seconds_for(0) == 0
        assert quota.seconds_for(60) == 0
        assert quota.seconds_for(120) == MINUTE
        assert quota.seconds_for(2001) == DAY
        assert quota.seconds_for(4001) == 2 * DAY
        assert [quota.seconds_for(n) for n in (61, 181)] == [MINUTE, 3 * MINUTE]
        for _ in range(30):
            quota.mark_answered(await quota.take())
        await asyncio.sleep(20)
        for _ in range(30):
            quota.mark_answered(await quota.take())
        expected = {0: 40, 1: 40, 30: 40, 31: 60, 60: 60, 61: 100, 91: 120}
        assert {n: round(quota.seconds_for(n), 6) for n in expected} == expected

    run_virtually(work())


@pytest.mark.parametrize("speed", [1.0, 1000.0])
def test_simulated_api_and_client_count_requests_over_the_same_minute_and_the_same_day(speed: float) -> None:
    async def work() -> list[str | None]:
        throttle = Throttle(2, 3, LoopClock(speed))
        output = []
        for wait in (0, 0, 0, 61, 0, 86_400):
            await asyncio.sleep(wait / speed)
            output.append(throttle.refusal())
        return output

    found = run_virtually(work())[0]
    assert [refusal and refusal.rpartition("rate ")[2] for refusal in found] == [
        *(None, None, "(2/minute)", None, "(3/day)", None)
    ]
