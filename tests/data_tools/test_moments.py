"""Files of moments: a query, a recording, and the windows that match the query."""

from pathlib import Path

import pytest

from data_tools.errors import DataError
from data_tools.manifest import audio_clip
from data_tools.moments import Moment, read_moments, write_moments, write_published

ONE = '{"id": "a_1", "text": "A dog barks", "clip": "castella/train/a.wav", "windows": [[1, 2.5], [7, 8]]}\n'
BLIND = '{"id": "q1", "text": "A dog barks", "clip": "castella/blind/a.wav", "windows": null}\n'


def test_moments_survive_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "moments.jsonl"
    path.write_text(ONE + BLIND)
    moments = read_moments(path)
    assert moments[0].windows == [(1.0, 2.5), (7.0, 8.0)]
    assert moments[1] == Moment(id="q1", text="A dog barks", clip="castella/blind/a.wav", windows=None)
    write_moments(tmp_path / "again.jsonl", moments)
    assert read_moments(tmp_path / "again.jsonl") == moments


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("qid,query\n", "m.jsonl: is not a file of moments"),
        (ONE + ONE, "m.jsonl, line 2: the id 'a_1' is already on line 1"),
        (ONE.replace("[7, 8]", "[8, 8]"), r"m.jsonl, line 1: not a moment \(.*windows.*end after it starts"),
        (ONE.replace("[7, 8]", "[8, 7]"), r"m.jsonl, line 1: not a moment \(.*windows.*end after it starts"),
        (ONE.replace("[7, 8]", "[-1, 7]"), r"m.jsonl, line 1: not a moment \(.*windows"),
        (ONE.replace("[7, 8]", "[7]"), r"m.jsonl, line 1: not a moment \(.*windows"),
        (ONE.replace("[[1, 2.5], [7, 8]]", "[]"), r"m.jsonl, line 1: not a moment \(.*windows"),
        (ONE.replace(', "windows": [[1, 2.5], [7, 8]]', ""), r"m.jsonl, line 1: not a moment \(.*windows"),
        (BLIND + ONE.replace("A dog barks", "..."), r"m.jsonl, line 2: the caption '...' has no letter"),
        (ONE + "\n" + BLIND, "m.jsonl, line 2: the line is blank"),
    ],
)
def test_invalid_moment_lines_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "m.jsonl").write_text(text)
    with pytest.raises(DataError, match=said):
        read_moments(tmp_path / "m.jsonl")


def test_published_moments_of_two_recordings_with_the_same_file_name_are_refused(tmp_path: Path) -> None:
    clips = [audio_clip(tmp_path / name, "same.wav", "own", "test", [], 9.0) for name in ("a", "b")]
    clips = [clip.model_copy(update={"id": f"own/{number}"}) for number, clip in enumerate(clips)]
    queries = [(Moment(id=clip.id, text="A dog", clip=clip.id, windows=None), clip) for clip in clips]
    with pytest.raises(DataError, match=r"own/1 and own/0 .*same; rename one of the files"):
        write_published(tmp_path / "list.jsonl", queries)
    assert not (tmp_path / "list.jsonl").exists()
