"""Edge cases of the crawler and of readers that similar fixtures do not show."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from filelock import FileLock
from pydantic import SecretStr
from sandboxes import SITE, Direct, LoopClock, direct_client, run_virtually

from data_tools import files
from data_tools.documents.annotations import FAR_OVER, OVER, read_annotations, repaired_window
from data_tools.documents.strict import Strict
from data_tools.errors import AudioError, DataError
from data_tools.files import remove_parts
from data_tools.freesound import store as stores
from data_tools.freesound.audio_folder import Folder
from data_tools.freesound.client import _REDIRECTS, FAILURES, HOUR, MINUTE, Client, NoPageError, Response
from data_tools.freesound.fetch import _write_flac
from data_tools.freesound.quota import DAY, Quota
from data_tools.freesound.selection import Chosen
from data_tools.freesound.sounds import Page, Sound
from data_tools.freesound.store import Store
from data_tools.freesound.windows import Progress, Window
from data_tools.locks import lock_of
from data_tools.manifest import Clip
from data_tools.sandbox.verb import KEY_VALUE, make_answers

WHOLE = Window(0, 2_000_000_000)


def answer(status: int, **content: object) -> Response:
    body = json.dumps(content).encode()
    return Response(status, body, len(body))


OVERLOADED = answer(500, detail="Search is overloaded, please try again later.")


def searched(path: Path, answers: Callable[[int, Response], Response], window: Window = WHOLE) -> tuple[Any, float]:
    """Return the page of a search, with answers changed by their number; and the virtual seconds it took."""
    store = Store(path, create=True)
    transport = Direct(make_answers(40, 7, 0.0, 0), tamper=answers)
    try:
        return run_virtually(direct_client(store, transport).search(window))
    finally:
        store.close()


# --- the client of the API ---------------------------------------------------------------------------------------


def test_crawl_search_covers_the_whole_last_second_of_its_time_window(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", create=True)
    transport = Direct(make_answers(40, 7, 0.0, 0))
    run_virtually(direct_client(store, transport).search(Window(10, 20)))
    store.close()
    assert "1970-01-01T00%3A00%3A10.000Z+TO+1970-01-01T00%3A00%3A20.999Z" in transport.urls[0]


def test_search_window_is_split_only_after_consecutive_overload_answers(tmp_path: Path) -> None:
    failed = [*(FAILURES - 1) * [OVERLOADED], answer(200), *(FAILURES - 1) * [OVERLOADED]]
    page, _ = searched(tmp_path / "a", lambda number, given: failed[number - 1] if number <= len(failed) else given)
    assert page.count == 40
    with pytest.raises(NoPageError):
        searched(tmp_path / "b", lambda number, given: OVERLOADED)


@pytest.mark.parametrize(("detail", "pause"), [("Limit of 2000/day", HOUR), ("Limit of 60/minute", MINUTE)])
def test_answer_429_pauses_a_crawl_a_minute_at_the_minute_limit_or_an_hour_at_a_day_limit(
    detail: str, pause: float, tmp_path: Path
) -> None:
    _, seconds = searched(tmp_path / "s", lambda number, given: answer(429, detail=detail) if number == 1 else given)
    assert pause <= seconds < 1.1 * pause + 5


class Moving:
    """A transport that redirects so often, then sends a file."""

    def __init__(self, redirects: int) -> None:
        self.redirects = redirects

    async def get(self, url: str, headers: object, into: Path | None = None, limit: int | None = None) -> Response:
        hops = int(url.rpartition("/")[2])
        if hops < self.redirects:
            return Response(302, b"", 0, f"{SITE}/{hops + 1}")
        return Response(200, b"", 7)


@pytest.mark.parametrize("redirects", [0, 1, _REDIRECTS])
def test_preview_redirects_are_followed(redirects: int, tmp_path: Path) -> None:
    store, clock = Store(tmp_path / "store", create=True), LoopClock()
    quota = Quota(store.database, 10**6, 10**6, clock)
    client = Client(SITE, SecretStr(KEY_VALUE), quota, Moving(redirects), clock)
    length, _ = run_virtually(client.download_preview(f"{SITE}/0", tmp_path / "part"))
    store.close()
    assert length == 7


def test_answered_request_is_counted_against_the_quota_from_the_arrival_of_the_answer(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", create=True)

    async def search() -> float:
        await direct_client(store, Direct(make_answers(40, 7, 0.0, 0))).search(WHOLE)
        return LoopClock().now()

    now, _ = run_virtually(search())
    (counted,) = store.database.execute("SELECT counted_to FROM requests").fetchall()
    store.close()
    assert counted[0] <= now, "not ten minutes longer, as one without an answer"


def test_time_estimate_for_requests_counts_those_already_made_today(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", create=True)

    async def estimate() -> float:
        quota = Quota(store.database, 100, 10, LoopClock())
        for _ in range(5):
            quota.mark_answered(await quota.take())
        return quota.seconds_for(8)

    found, _ = run_virtually(estimate())
    store.close()
    assert found == DAY, "five are left today, three go tomorrow"


def test_resumed_crawl_reads_sounds_of_its_last_timestamp_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, listings = Store(tmp_path / "store", create=True), []
    monkeypatch.setattr(stores, "advance", lambda window, listing, known: listings.append(listing) or Progress())
    sounds = [Sound(id=n, created=1000 * second, duration=1.0) for n, second in enumerate((3, 5, 5), 1)]  # type: ignore[arg-type]
    store.save_page(Window(0, 9), Page(7, sounds))
    store.close()
    assert (listings[0].reached, listings[0].passed) == (5, 1)


@pytest.mark.parametrize(("off", "fits"), [(0.0, True), (0.4, True), (-0.6, False), (0.6, False)])
def test_fetched_file_with_another_duration_than_its_metadata_is_refused(
    off: float, fits: bool, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "part.wav", 0.1 * np.ones(32_000), 16_000)
    folder = Folder(tmp_path / "audio", 16_000, False)
    sound = Chosen(7, "a", "b", "c", "cc0", 2.0 + off, None, "p")
    if fits:
        assert _write_flac(tmp_path / "part.wav", folder, sound).seconds == 2.0
    else:
        with pytest.raises(AudioError, match=r"the audio is 2.00 s long, but"):
            _write_flac(tmp_path / "part.wav", folder, sound)
    folder.close()


# --- documents and files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end", "kind"), [(12.0, OVER), (12.01, FAR_OVER)])
def test_moment_window_ending_up_to_two_seconds_after_its_recording_is_clipped(end: float, kind: str) -> None:
    assert repaired_window((5.0, end), 10.0) == ((5.0, 10.0), kind)


@pytest.mark.parametrize("text", ["inf", "-inf", "nan", "1e999"])
def test_nan_and_infinity_are_refused_as_values_of_settings(text: str) -> None:
    class Rate(Strict):
        lr: float

    assert Rate(lr=1e300).lr == 1e300
    with pytest.raises(ValueError, match="finite"):
        Rate(lr=float(text))


def test_temporary_file_of_another_users_running_process_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(process: int, signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(files.os, "kill", refused)
    (tmp_path / f".a.{os.getppid()}.part").touch()
    remove_parts(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_lock_is_free_after_another_thread_releases_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only by its release: some versions of the library also release a lock when it is garbage-collected."""
    locks: list[FileLock] = []

    class Referenced(FileLock):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            locks.append(self)

    monkeypatch.setattr("filelock.FileLock", Referenced)
    holding, is_held, is_over = lock_of(tmp_path / "file"), threading.Event(), threading.Event()

    def hold() -> None:
        holding.__enter__()
        is_held.set()
        is_over.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert is_held.wait(10)
        with pytest.raises(DataError, match="another process is writing"), lock_of(tmp_path / "file"):
            pass
        holding.__exit__(None, None, None)
        with lock_of(tmp_path / "file"):
            pass
    finally:
        is_over.set()
        thread.join()


# --- what leaks --------------------------------------------------------------------------------------------------


def clip(id: str, split: str, path: str = "a.wav") -> Clip:
    known = {"source": "set", "captions": ["a"], "freesound_id": None, "licence": None, "uploader": None}
    return Clip(id=id, file_name=path, path=path, seconds=1.0, split=split, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("split", ["train", "val"])
def test_moment_window_beginning_before_its_recording_is_clipped(split: str, tmp_path: Path) -> None:
    """Also if it ends after the recording, where windows of scored splits are kept as published."""
    line = {"query": "a dog", "vid": "v", "duration": 10.0}
    windows = {"before and after": [-2.0, 14.0], "after": [2.0, 14.0], "inside": [2.0, 4.0]}
    path = tmp_path / f"castella_{split}_release.jsonl"
    lines = [line | {"qid": qid, "relevant_windows": [window]} for qid, window in windows.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = {query.qid: query.windows for query in read_annotations(path).queries}
    kept = [(2.0, 14.0)] if split == "val" else [(2.0, 10.0)]
    assert found == {"before and after": [(0, 10.0)], "after": kept, "inside": [(2.0, 4.0)]}
