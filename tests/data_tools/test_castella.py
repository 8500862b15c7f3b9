"""Moments and CASTELLA as published: repairs of its faults, blind lists, ids of AudioCaps."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from data_files import failure, write_wav
from moment_figures import official_figures

from data_tools.__main__ import main
from data_tools.errors import KitError
from data_tools.manifest import Clip, audio_clip, read_manifest
from data_tools.moments import Moment, read_moments, write_moments
from submission.formats.moments import read_moment_truth
from submission.metrics.moments import score_moments

# Eight windows in recordings of 299 and 83 s: 2 are right, 2 are clipped, 4 are dropped, one query has none left.
LINES = [
    ("67AE9ZKvECs", 1, 299, [[200, 4800], [5, 5]]),
    ("67AE9ZKvECs", 2, 299, [[299, 301]]),
    ("-AheI8Epim4", 1, 83, [[80, 84], [70, 81], [9, 3], [0, 83], [83, 90]]),
]
MENDED = [[(200, 299)], [(80, 83), (70, 81), (0, 83)]]


def release(path: Path, blind: bool = False) -> Path:
    lines = []
    for vid, number, duration, windows in LINES:
        line = {"qid": f"{vid}_{number}", "query": f"A man sings {number}", "duration": duration, "vid": vid}
        lines.append(json.dumps(line if blind else {**line, "relevant_windows": windows}) + "\n")
    path.write_text("".join(lines))
    return path


def features(folder: Path) -> Path:
    """Write an empty file of features for each recording with queries, so that the published lengths count."""
    folder.mkdir(exist_ok=True)
    for vid, *_ in LINES:
        (folder / f"{vid}.npz").touch()
    return folder


def convert(root: Path, *more: object) -> tuple[list[Clip], list[Moment]]:
    out, moments = root / "castella.jsonl", root / "moments.jsonl"
    assert main(["castella", str(root), "--out", str(out), "--moments", str(moments), *map(str, more)]) == 0
    clips = read_manifest(out)
    return clips, read_moments(moments, clips)


def test_windows_of_training_splits_are_repaired(tmp_path):
    release(tmp_path / "c_train_release.jsonl")
    features(tmp_path / "train")
    for _ in range(2):  # files written into the same folder are not read
        clips, moments = convert(tmp_path, "--features", tmp_path)
        assert [moment.windows for moment in moments] == MENDED
        assert [moment.id for moment in moments] == ["67AE9ZKvECs_1", "-AheI8Epim4_1"]
        assert moments[0].clip == "castella/train/67AE9ZKvECs.npz"
        assert [clip.seconds for clip in clips] == [299, 83]


@pytest.mark.parametrize("split", ["val", "test"])
def test_windows_of_scored_splits_stay_as_published(tmp_path, split):
    """The official scorer drops only windows of no length and reversed ones."""
    path = release(tmp_path / f"castella_{split}_release.jsonl")
    clips, moments = convert(tmp_path, "--features", features(tmp_path))
    expected = [[w for w in windows if w[1] > w[0]] for _, _, _, windows in LINES]
    assert [[list(window) for window in moment.windows or []] for moment in moments] == expected
    write_moments(tmp_path / "truth.jsonl", moments, clips)
    ours, theirs = (read_moment_truth(file).windows() for file in (tmp_path / "truth.jsonl", path))
    answers = {qid: [[0, 83], [200, 4800], [80, 84], [299, 301]] for qid in theirs}
    assert official_figures(score_moments(answers, ours)) == official_figures(score_moments(answers, theirs))


def test_recordings_without_audio_are_left_out_but_for_those_of_a_blind_list(tmp_path, capsys):
    release(tmp_path / "c_train_release.jsonl")
    path = release(tmp_path / "list.jsonl", blind=True)
    path.write_text(path.read_text().replace('"qid": "', '"qid": "b').replace('"vid": "', '"vid": "b'))
    (tmp_path / "67AE9ZKvECs.npz").touch()
    clips, moments = convert(tmp_path, "--features", tmp_path)
    assert "1 recordings have no file" in capsys.readouterr().out
    assert [(clip.split, clip.file_name) for clip in clips] == [
        ("train", "67AE9ZKvECs.npz"), ("blind", "b67AE9ZKvECs.npz"), ("blind", "b-AheI8Epim4.npz")
    ]  # fmt: skip
    assert [moment.id for moment in moments] == ["67AE9ZKvECs_1", *(f"b{vid}_{number}" for vid, number, _, _ in LINES)]
    assert [moment.windows for moment in moments][1:] == [None] * 3


def test_audio_in_the_folder_of_the_split_and_linked_folders_are_found(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    release(tmp_path / "elsewhere/c_train_release.jsonl")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "elsewhere")
    for folder in (tmp_path / "set", tmp_path / "set/train"):
        write_wav(folder / "67AE9ZKvECs.wav", 1)
    clips, _ = convert(tmp_path / "set")
    assert [clip.path for clip in clips] == [str(tmp_path / "set/train/67AE9ZKvECs.wav")]


def test_features_stand_for_audio(tmp_path):
    release(tmp_path / "c_train_release.jsonl")
    for name in ("67AE9ZKvECs.npz", "-AheI8Epim4.npy"):
        (tmp_path / name).touch()
    write_wav(tmp_path / "-AheI8Epim4.wav", 1)
    clips, _ = convert(tmp_path, "--features", tmp_path)
    assert [(clip.file_name, clip.seconds) for clip in clips] == [("67AE9ZKvECs.npz", 299), ("-AheI8Epim4.npy", 83)]


def test_number_as_query_id_is_read(tmp_path):
    (tmp_path / "u_test_release.jsonl").write_text(
        '{"qid": 0, "query": "A hound", "duration": 12, "vid": "a", "relevant_windows": [[2, 8]], "saliency": [1]}\n'
    )
    (tmp_path / "a.npy").touch()
    clips, moments = convert(tmp_path, "--features", tmp_path)
    assert moments == [Moment(id="0", text="A hound", clip=clips[0].id, windows=[(2, 8)])]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('"vid": "-AheI8Epim4"', '"vid": 3', "line 3: vid"),
        ('"duration": 83', '"duration": 0', "line 3: duration"),
        ("[9, 3]", "[9]", "line 3: relevant_windows"),
        ("[9, 3]", '["9", 3]', "line 3: relevant_windows"),
        ("67AE9ZKvECs_2", "67AE9ZKvECs_1", "line 2: .*already"),
        ("A man sings 2", "...", "line 2: .*no letter"),
        ('"query": "A man sings 2", ', "", "line 2: query"),
        ("{", "[", "line 1"),
    ],
)
def test_invalid_lines_of_a_release_are_refused(tmp_path, before, after, words, capsys):
    path = release(tmp_path / "castella_test_release.jsonl")
    path.write_text(path.read_text().replace(before, after))
    outputs = ("--out", tmp_path / "m.jsonl", "--moments", tmp_path / "q.jsonl")
    assert re.search(words, failure(capsys, "castella", tmp_path, "--audio", features(tmp_path), *outputs))


def test_moments_of_another_manifest_and_of_two_recordings_of_one_name_are_refused(tmp_path):
    path = release(tmp_path / "c_train_release.jsonl")
    clips = [
        audio_clip(tmp_path, f"{vid}.wav", "own", "train", [], seconds=9.0) for vid in ("67AE9ZKvECs", "-AheI8Epim4")
    ]
    with pytest.raises(KitError, match="line 3: the recording -AheI8Epim4 is not"):
        read_moments(path, clips[:1])
    for other in (replace(clips[1], file_name=clips[0].file_name), replace(clips[0], id="x/67AE9ZKvECs.wav")):
        with pytest.raises(KitError, match="same name"):
            read_moments(path, [clips[0], other])


def test_folders_without_castella_are_refused(tmp_path, capsys):
    argv = ("castella", tmp_path, "--out", tmp_path / "a.jsonl", "--moments", tmp_path / "b.jsonl")
    assert "no queries" in failure(capsys, *argv)
    release(tmp_path / "castella.jsonl")  # no split in its name
    assert "no queries" in failure(capsys, *argv)
    release(tmp_path / "castella_val_release.jsonl")
    assert "no query is left" in failure(capsys, *argv)
    assert "no such folder" in failure(capsys, *argv, "--features", tmp_path / "clpa")
    release(tmp_path / "clotho_val_release.jsonl")
    assert "both" in failure(capsys, *argv)
    (tmp_path / "clotho_val_release.jsonl").unlink()
    before = (tmp_path / "castella_val_release.jsonl").read_bytes()
    argv = ("castella", tmp_path, "--features", features(tmp_path), "--out", tmp_path / "a.jsonl", "--moments")
    assert "overwrite" in failure(capsys, *argv, tmp_path / "castella_val_release.jsonl")
    assert (tmp_path / "castella_val_release.jsonl").read_bytes() == before
