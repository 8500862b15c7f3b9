"""The stand-in for Freesound: its sounds, and the commands that it runs."""

import io

import pytest
import soundfile
from sandboxes import stored

from data_tools.__main__ import main
from data_tools.freesound.sandbox import PRESENT, Sandbox


def test_sounds_are_a_function_of_the_seed_and_the_id():
    one, same, other = Sandbox(500, 1), Sandbox(900, 1), Sandbox(500, 2)
    assert one.ids() == [number for number in same.ids() if number <= 500] != other.ids()
    assert len(one.ids()) == pytest.approx(PRESENT * 500, abs=40)
    texts = [server.sound(one.ids()[7])["description"] for server in (one, same, other)]
    assert texts[0] == texts[1] != texts[2]
    assert one.audio(one.ids()[7]) == same.audio(one.ids()[7])


def test_previews_have_their_stated_length():
    server = Sandbox(60)
    for number in server.ids()[:3]:
        info = soundfile.info(io.BytesIO(server.audio(number)))
        assert info.duration == pytest.approx(server.sound(number)["duration"], abs=0.2)


def test_commands_run_against_the_sandbox_until_one_fails(tmp_path):
    path, other = tmp_path / "s.sqlite", tmp_path / "other.sqlite"
    commands = [f"crawl {path}", f"status {path}", "status missing.sqlite", f"crawl {other}"]
    assert main(["sandbox", "--port", "0", "--sounds", "100", *commands]) == 1
    assert main(["sandbox", "--port", "99999"]) == 2
    assert len(stored(path)) == len(Sandbox(100).ids())
    assert not other.exists()
