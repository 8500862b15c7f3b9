"""`rank --top K`: the first K names of the full ranking, without all scores ever being held."""

import csv
from pathlib import Path

import numpy as np
import pytest
from outcomes import refused

from submission.__main__ import main as submission
from submission.formats.pairs import read_pairs
from submission.formats.score_matrix import read_scores
from submission.ordering import ranked_columns
from system.__main__ import main
from system.models import retrieval


def lists(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("top", [1, 7, 24])
def test_verb_rank_with_option_top_lists_the_first_clips_of_the_full_ranking(
    unbroken: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top: int
) -> None:
    """Lists and written scores agree, in blocks of two queries and in one block."""
    ask = ["rank", str(unbroken), str(world), "--split", "evaluation"]
    for name, scores in (("a", 24 * 2), ("b", 1 << 24)):
        monkeypatch.setattr(retrieval, "MAX_SCORES", scores)
        assert main([*ask, "--out", str(tmp_path / f"{name}.npy")]) == 0
        matrix = read_scores(tmp_path / f"{name}.npy")
        assert main([*ask, "--top", str(top), "--out", str(tmp_path / f"{name}.csv")]) == 0
        header, *rows = lists(tmp_path / f"{name}.csv")
        assert header == ["query", *(f"file_name_{rank}" for rank in range(1, top + 1))]
        best = ranked_columns(matrix.values, matrix.file_names, top)
        expected = [[matrix.file_names[column] for column in columns] for columns in best]
        assert rows == [[text, *names] for text, names in zip(matrix.query_texts, expected, strict=True)]
    assert np.allclose(read_scores(tmp_path / "a.npy").values, read_scores(tmp_path / "b.npy").values, atol=1e-6)


def test_equal_scores_are_ordered_by_file_name(unbroken: Path, world: Path, tmp_path: Path) -> None:
    """Three copies of one recording; two are requested."""
    (sound, *_) = sorted((world.parent / "evaluation").glob("*.wav"))
    folder, queries, out = tmp_path / "sounds", tmp_path / "q.csv", tmp_path / "r.csv"
    folder.mkdir()
    for name in ("c.wav", "b.wav", "ä.wav"):
        (folder / name).write_bytes(sound.read_bytes())
    queries.write_text("caption\na deep tone\n")
    ask = ["rank", str(unbroken), str(folder), str(queries)]
    assert main([*ask, "--out", str(tmp_path / "s.npy")]) == 0
    assert np.ptp(read_scores(tmp_path / "s.npy").values) == 0
    assert main([*ask, "--top", "2", "--out", str(out)]) == 0
    assert lists(out)[1][1:] == ["b.wav", "c.wav"]


def test_csv_of_top_10_lists_written_by_rank_is_scored_and_converted(
    unbroken: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.csv"
    ask = ["rank", str(unbroken), str(world), "--split", "evaluation"]
    assert main([*ask, "--top", "10", "--out", str(out)]) == 0
    assert "120 queries x 10 best clips, of 24 clips" in capsys.readouterr().out
    assert main([*ask, "--out", str(tmp_path / "s.npy")]) == 0
    assert submission(["check", str(out), "--truth", str(tmp_path / "s.npy"), "--edition", "custom"]) == 0
    written = tmp_path / "w.csv"
    assert submission(["write", str(tmp_path / "s.npy"), "--out", str(written), "--edition", "custom"]) == 0
    assert written.read_bytes() == out.read_bytes()


def test_pairs_written_for_a_judge_are_those_of_the_top_lists(unbroken: Path, world: Path, tmp_path: Path) -> None:
    ask = ["rank", str(unbroken), str(world), "--split", "evaluation"]
    for name in ("r.csv", "top.jsonl"):
        assert main([*ask, "--top", "5", "--out", str(tmp_path / name)]) == 0
    assert main([*ask, "--out", str(tmp_path / "s.npy")]) == 0
    matrix, pairs = read_scores(tmp_path / "s.npy"), read_pairs(tmp_path / "top.jsonl")
    named = dict(zip(matrix.clip_ids, matrix.file_names, strict=True))
    names = [name for row in lists(tmp_path / "r.csv")[1:] for name in row[1:]]
    assert [named[pair.clip] for pair in pairs] == names
    assert [pair.rank for pair in pairs] == [1, 2, 3, 4, 5] * len(matrix)
    for pair in pairs:
        row, column = matrix.query_ids.index(pair.query), matrix.clip_ids.index(pair.clip)
        assert (pair.score, pair.text) == (matrix.values[row, column], matrix.query_texts[row])
        assert Path(pair.path).name == Path(named[pair.clip]).name
        assert Path(pair.path).is_file()


def test_broken_clip_lowers_the_highest_allowed_value_of_option_top_of_verb_rank(
    unbroken: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sounds"
    folder.mkdir()
    (folder / "whole.wav").write_bytes(next((world.parent / "evaluation").glob("*.wav")).read_bytes())
    (folder / "broken.wav").write_bytes(b"RIFF")
    (tmp_path / "q.csv").write_text("caption\na deep tone\n")
    command = ["rank", unbroken, folder, tmp_path / "q.csv", "--out", tmp_path / "r.csv"]
    assert "ranked" in refused(capsys, *command, "--top", "2")
    assert main([*map(str, command), "--top", "1"]) == 0
    assert lists(tmp_path / "r.csv")[1] == ["a deep tone", "whole.wav"]
