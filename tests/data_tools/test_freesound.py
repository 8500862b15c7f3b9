"""A crawl stores exactly the readable sounds, whatever happens, within the limits, and keeps its key."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
from sandboxes import FAST, Sandbox, falling_scores, served, stored, truth, write_scores

from data_tools.__main__ import main
from data_tools.freesound import api as api_module
from data_tools.freesound import crawl as crawl_module
from data_tools.freesound import store as store_module
from data_tools.freesound.api import DAY, Api, RefusedError
from data_tools.freesound.sandbox import KEY
from data_tools.freesound.store import open_store


@pytest.fixture
def no_waits(monkeypatch):
    """Seconds that clients wanted to wait; they wait none."""
    waits: list[float] = []
    monkeypatch.setattr(api_module.time, "sleep", waits.append)
    return waits


def crawl(path: Path, *options: str) -> int:
    return main(["crawl", str(path), *FAST, *options])


def test_crawl_stores_every_sound_with_one_request_per_block(tmp_path):
    with served(Sandbox(700)) as server:
        assert crawl(tmp_path / "s.sqlite") == 0
        assert stored(tmp_path / "s.sqlite") == truth(server)
        assert 500 < len(truth(server)) < 700
        assert len(server.seen) == 5 + 1, "and the number of sounds"


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize("seed", range(2))
def test_faulty_server_with_broken_and_missing_sounds_is_read_completely(seed, tmp_path):
    draw = random.Random(seed)
    newest = Sandbox(250, seed).ids()[-1]
    broken, nulls = draw.sample(range(1, 250), 3), [*draw.sample(range(1, 240), 10), newest]
    with served(Sandbox(250, seed, faults=0.1, broken=broken, nulls=nulls)) as server:
        assert crawl(tmp_path / "s.sqlite") == 0
        assert stored(tmp_path / "s.sqlite") == truth(server)


def test_crawl_that_is_stopped_anywhere_continues_and_stores_everything(tmp_path, monkeypatch):
    path = tmp_path / "s.sqlite"
    with served(Sandbox(1000)) as server:
        get = Api._get
        for stop in (1, 2, 3, 2):
            left = stop

            def dies(self: Api, query: dict[str, Any]) -> tuple[int, dict[str, Any]]:
                nonlocal left
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
                return get(self, query)

            monkeypatch.setattr(Api, "_get", dies)
            assert crawl(path) == 130
        monkeypatch.setattr(Api, "_get", get)
        before = len(server.seen)
        assert crawl(path) == 0
        assert stored(path) == truth(server)
        assert len(server.seen) - before == 1 + 7 - 4, "finished blocks are not read again"


def test_later_crawl_reads_new_sounds_and_late_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(crawl_module, "LATE", 1)
    path = tmp_path / "s.sqlite"
    with served(Sandbox(450)) as server:
        late = next(number for number in range(420, 450) if server.exists(number))
        server.hidden = {late}
        assert crawl(path) == 0
        server.hidden, server.highest = set(), 600
        server.seen.clear()
        assert crawl(path) == 0
        assert stored(path, "id") == [(number,) for number in server.ids()]
        assert len(server.seen) < 6, "old blocks are not read again"


def test_stopped_refresh_continues_where_it_stopped(tmp_path, monkeypatch, capsys):
    path = tmp_path / "s.sqlite"
    with served(Sandbox(1000)) as server:
        assert crawl(path) == 0
        sounds, calls = Api.sounds, 0

        def dies(self: Api, ids: list[int]) -> Any:
            nonlocal calls
            calls += 1
            if calls == 6:
                raise KeyboardInterrupt
            return sounds(self, ids)

        with monkeypatch.context() as patch:
            patch.setattr(Api, "sounds", dies)
            assert crawl(path, "--refresh") == 130
        assert main(["status", str(path)]) == 0
        assert "5  of 7 blocks" in capsys.readouterr().out
        server.changes = {number: {"license": "new"} for number in server.ids()}
        assert crawl(path, "--refresh") == 0
        changed = [number for number, licence in stored(path, "id, license") if licence == "new"]
        assert changed == [number for number in server.ids() if number >= 5 * 150], "five blocks were finished"
        assert crawl(path, "--refresh") == 0
        assert len(stored(path, "id")) == sum(licence == "new" for _, licence in stored(path, "id, license"))


def test_changed_preferences_are_found_by_refresh_and_deleted_sounds_are_kept(tmp_path):
    path = tmp_path / "s.sqlite"
    with served(Sandbox(300)) as server:
        assert crawl(path) == 0
        before = stored(path, "id")
        server.hidden, server.changes = {server.ids()[3]}, {server.ids()[9]: {"gen_ai_preference": "no-gen-ai"}}
        assert crawl(path, "--refresh") == 0
        assert stored(path, "id") == before
        assert dict(stored(path, "id, gen_ai_preference"))[server.ids()[9]] == "no-gen-ai"


def test_crawl_warns_if_an_index_that_is_being_rebuilt_hides_sounds(tmp_path, monkeypatch, caplog):
    path = tmp_path / "s.sqlite"
    with served(Sandbox(600)) as server:
        sounds = Api.sounds

        def partial(self: Api, ids: list[int]) -> Any:
            server.hidden = set(server.ids()[::2])
            return sounds(self, ids)

        with monkeypatch.context() as patch:
            patch.setattr(Api, "sounds", partial)
            assert crawl(path) == 0
        assert "--refresh" in caplog.text
        caplog.clear()
        server.hidden = set()
        assert crawl(path, "--refresh") == 0
        assert stored(path) == truth(server)
        assert "--refresh" not in caplog.text


@pytest.mark.parametrize("status", [400, 414])
def test_search_that_the_server_finds_too_long_is_halved(status, tmp_path, monkeypatch):
    with served(Sandbox(300)) as server:
        get = Api._get

        def short(self: Api, query: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            if query.get("filter", "").count("OR") > 60:
                return status, {"detail": "too long"}
            return get(self, query)

        monkeypatch.setattr(Api, "_get", short)
        assert crawl(tmp_path / "s.sqlite") == 0
        assert stored(tmp_path / "s.sqlite") == truth(server)


def test_search_that_the_server_refuses_for_one_id_is_an_error(tmp_path, monkeypatch):
    def refuses(self: Api, query: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 400, {"detail": "unknown field"}

    monkeypatch.setenv("FREESOUND_API_KEY", "x")
    monkeypatch.setattr(Api, "_get", refuses)
    with open_store(tmp_path / "s.sqlite", create=True) as store, pytest.raises(RefusedError):
        Api(store).sounds(list(range(1, 151)))


def test_limits_hold_over_restarts_in_any_minute_and_day(tmp_path, monkeypatch):
    now = [1e9]
    sent: list[float] = []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(store_module.time, "time", lambda: now[0])
    monkeypatch.setattr(store_module.time, "sleep", sleep)

    def ask(count: int) -> None:
        with open_store(tmp_path / "s.sqlite", create=True) as store:
            for _ in range(count):
                store.take_request(((6, 60.0), (40, DAY)))
                sent.append(now[0])
                now[0] += 1

    for count in (5, 30, 60):  # three starts of the command
        ask(count)
    for span, limit in ((60, 6), (86_400, 40)):
        assert all(later - earlier >= span for earlier, later in zip(sent, sent[limit:], strict=False)), span
    assert sent[5] - sent[0] < 60, "no needless wait"


def test_key_is_sent_to_the_api_only_and_stored_nowhere(tmp_path, capfd):
    with served(Sandbox(160)) as server:
        assert main(["-v", "crawl", str(tmp_path / "s.sqlite"), *FAST]) == 0
        scores = write_scores(tmp_path / "scores.csv", falling_scores(server))
        command = ["-v", "fetch", str(tmp_path / "s.sqlite"), "--scores", str(scores), "--out", str(tmp_path / "out")]
        assert main([*command, "--exclude", "none", "--limit", "2"]) == 0
        previews = [headers for path, headers in server.seen if path.startswith("/previews")]
        assert len(previews) == 2
        assert not any(KEY in str(headers.get("Authorization")) for headers in previews)
        assert not any(KEY in path for path, _ in server.seen)
    printed = capfd.readouterr()
    assert f"Token {KEY}" not in printed.out + printed.err
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert f"Token {KEY}".encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("variables", "word"),
    [
        ({"FREESOUND_API_KEY": ""}, "key"),
        ({"FREESOUND_API_KEY": "wrong"}, "key"),
        ({"FREESOUND_API": "https://example.org"}, "machine"),
        ({"FREESOUND_API": "http://freesound.org.evil.example"}, "machine"),
    ],
)
def test_wrong_keys_and_addresses_are_refused(variables, word, tmp_path, monkeypatch, capsys):
    with served(Sandbox(10)):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert crawl(tmp_path / "s.sqlite") == 1
    assert word in capsys.readouterr().err


def test_dry_run_asks_for_one_block_and_stores_nothing(tmp_path, capsys):
    with served(Sandbox(700)) as server:
        assert crawl(tmp_path / "s.sqlite", "--dry-run") == 0
        assert len(server.seen) == 2
    assert int(re.findall(r"(\d+) of 150 are sounds", capsys.readouterr().out)[0]) > 100
    assert not list(tmp_path.iterdir())


def test_status_reads_a_store_that_another_process_writes(tmp_path, capsys):
    with served(Sandbox(160)):
        assert crawl(tmp_path / "s.sqlite") == 0
    with open_store(tmp_path / "s.sqlite") as store:
        store.database.execute("BEGIN IMMEDIATE")
        assert main(["status", str(tmp_path / "s.sqlite")]) == 0
        assert "no-gen-ai" in capsys.readouterr().out
        assert main(["crawl", str(tmp_path / "s.sqlite"), "--per-day", "0"]) == 2


@pytest.mark.parametrize("content", [None, b"not a database" * 99])
def test_file_that_is_no_store_is_refused(content, tmp_path, capsys):
    path = tmp_path / "s.sqlite"
    if content is not None:
        path.write_bytes(content)
    assert main(["status", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
