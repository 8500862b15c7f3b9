"""CASTELLA as published: both forms, repairs of its faults, blind lists, ids of AudioCaps."""

import json
from pathlib import Path

import pytest
from data_files import failure, write_wav
from moment_figures import official_figures

from data_tools.__main__ import main
from data_tools.datasets.castella import read_castella
from data_tools.errors import DataError
from data_tools.manifest import read_manifest
from data_tools.moments import read_moments, write_published
from submission.editions import get_moments_edition
from submission.formats.moments_truth import read_moment_truth
from submission.metrics.moment_metrics import score_moments

# Eight windows in recordings of 299 and 83 s: 2 are right, 2 are clipped, 4 are dropped, one query has none left.
LINES = [
    ("67AE9ZKvECs", 1, 299, [[200, 4800], [5, 5]]),
    ("67AE9ZKvECs", 2, 299, [[299, 301]]),
    ("-AheI8Epim4", 1, 83, [[80, 84], [70, 81], [9, 3], [0, 83], [84, 90]]),
]
MENDED = [[(200.0, 299.0)], [(80.0, 83.0), (70.0, 81.0), (0.0, 83.0)]]
FAULTS = {
    "line 1: 67AE9ZKvECs_1: the window [200, 4800] ends far after the end of a recording of 299 s: clipped",
    "line 1: 67AE9ZKvECs_1: the window [5, 5] has no length: dropped",
    "line 2: 67AE9ZKvECs_2: the window [299, 301] is outside of a recording of 299 s: dropped",
    "line 2: 67AE9ZKvECs_2: the query has no window left: left out",
    "line 3: -AheI8Epim4_1: the window [80, 84] ends after the end of a recording of 83 s: clipped",
    "line 3: -AheI8Epim4_1: the window [9, 3] ends before it starts: dropped",
    "line 3: -AheI8Epim4_1: the window [84, 90] is outside of a recording of 83 s: dropped",
}


def release(path: Path, blind: bool = False) -> Path:
    lines = []
    for vid, number, duration, windows in LINES:
        line = {"qid": f"{vid}_{number}", "query": f"A man sings {number}", "duration": duration, "vid": vid}
        lines.append(json.dumps(line if blind else {**line, "relevant_windows": windows}) + "\n")
    path.write_text("".join(lines))
    return path


def annotations(path: Path) -> Path:
    """Write the queries in the form of line/CASTELLA, and a recording without queries."""
    items = [
        {
            "yid": vid,
            "global_caption": "A man sings",
            "duration": seconds,
            "moments": [
                {"local_caption": f"A man sings {number}", "timestamps": windows}
                for other, number, _, windows in LINES
                if other == vid
            ],
        }
        for vid, seconds in (("67AE9ZKvECs", 299), ("-AheI8Epim4", 83), ("sCeWURVHfOM", 94))
    ]
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(items))
    return path


@pytest.mark.parametrize("form", ["release", "json"])
@pytest.mark.parametrize(
    ("encoding", "message"),
    [("utf-8-sig", None), ("utf-16", "line 1: not UTF-8"), ("utf-16-be", "line 1: not UTF-8"), ("utf-32", "not UTF-8")],
)
def test_castella_files_in_utf_8_are_read_and_other_encodings_reported(
    tmp_path: Path, form: str, encoding: str, message: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    is_list = form == "json"
    source = annotations(tmp_path / "json/en/train.json") if is_list else release(tmp_path / "c_train_release.jsonl")
    source.write_text(source.read_text(), encoding=encoding)
    argv = ["castella", str(tmp_path), "--out", str(tmp_path / "m.jsonl"), "--moments", str(tmp_path / "q.jsonl")]
    assert main([*argv, "--keep-missing"]) == (1 if message else 0)
    assert message is None or message in capsys.readouterr().err


def test_linked_folders_with_castella_files_are_read(tmp_path: Path) -> None:
    annotations(tmp_path / "elsewhere/en/train.json")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "json").symlink_to(tmp_path / "elsewhere")
    found = read_castella(tmp_path / "set", keep_missing=True)
    assert [path.name for path in found.files] == ["train.json"]


@pytest.mark.parametrize("form", ["release", "json"])
def test_windows_in_both_published_forms_of_castella_are_repaired_in_the_same_way(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    is_list = form == "json"
    source = annotations(tmp_path / "json/en/train.json") if is_list else release(tmp_path / "c_train_release.jsonl")
    out, moments = tmp_path / "castella.jsonl", tmp_path / "moments.jsonl"
    write_wav(tmp_path / "train" / "67AE9ZKvECs.wav", 1)
    for _ in range(2):  # files written into the same folder are not read
        named = ["--out", str(out), "--moments", str(moments), "--keep-missing"]
        assert main(["castella", str(tmp_path), *named]) == 0
    said = capsys.readouterr().out
    asked = read_moments(moments)
    assert [moment.windows for moment in asked] == MENDED
    assert [moment.id for moment in asked] == ["67AE9ZKvECs_1", "-AheI8Epim4_1"]
    assert asked[0].clip == "castella/train/67AE9ZKvECs.wav"
    clips = read_manifest(out)
    assert [clip.seconds for clip in clips] == [0.01, 83.0] + [94.0] * is_list
    assert all(clip.captions == (["A man sings"] if is_list else []) for clip in clips)
    count = 3 if is_list else 2
    assert f"audio found for 1 of {count}, missing for {count - 1}" in said
    assert said.count(str(source)) == 14


def test_castella_recordings_without_audio_are_skipped_with_their_queries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release(tmp_path / "c_train_release.jsonl")
    release(tmp_path / "list.jsonl", blind=True)
    out, moments = tmp_path / "castella.jsonl", tmp_path / "moments.jsonl"
    argv = ["castella", str(tmp_path), "--out", str(out), "--moments", str(moments)]
    write_wav(tmp_path / "67AE9ZKvECs.wav", 1)
    path = tmp_path / "list.jsonl"
    path.write_text(path.read_text().replace('"qid": "', '"qid": "b'))
    assert main(argv) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == (
        "train: 2 queries in 2 of 2 recordings, with 4 windows; audio found for 1 of 2, missing for 1; "
        "recordings without a file and their 1 query are left out (--keep-missing includes them)"
    )
    assert said[1] == "blind: 3 queries in 2 of 2 recordings; audio found for 1 of 2, missing for 1"
    assert [(clip.split, clip.file_name) for clip in read_manifest(out)] == [
        ("train", "67AE9ZKvECs.wav"), ("blind", "67AE9ZKvECs.wav"), ("blind", "-AheI8Epim4.wav")
    ]  # fmt: skip
    assert [moment.id for moment in read_moments(moments)] == [
        "67AE9ZKvECs_1",
        *(f"b{vid}_{number}" for vid, number, _, _ in LINES),
    ]


def test_castella_prefers_audio_in_the_folder_of_the_split(tmp_path: Path) -> None:
    release(tmp_path / "c_train_release.jsonl")
    for folder in (tmp_path, tmp_path / "train"):
        write_wav(folder / "67AE9ZKvECs.wav", 1)
    (clip,) = read_castella(tmp_path).clips
    assert clip.path == str(tmp_path / "train" / "67AE9ZKvECs.wav")


def test_castella_files_in_other_languages_are_ignored(tmp_path: Path) -> None:
    english = annotations(tmp_path / "json" / "en" / "train.json")
    annotations(tmp_path / "json" / "ja" / "test.json")
    found = read_castella(tmp_path, keep_missing=True)
    assert found.files == [english]
    assert {clip.split for clip in found.clips} == {"train"}


def test_castella_error_for_missing_audio_names_the_searched_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release(tmp_path / "c_train_release.jsonl")
    argv = ("castella", tmp_path, "--out", tmp_path / "a.jsonl", "--moments", tmp_path / "b.jsonl")
    assert "no file <id>.wav of any recording, directly or in <split>/; give the folder by" in failure(capsys, *argv)
    assert not (tmp_path / "a.jsonl").exists()


@pytest.mark.parametrize("option", ["--out", "--moments"])
def test_castella_verb_refuses_to_overwrite_its_input_files(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = release(tmp_path / "c_train_release.jsonl")
    write_wav(tmp_path / "67AE9ZKvECs.wav", 1)
    before = path.read_bytes()
    argv = {"--out": tmp_path / "a.jsonl", "--moments": tmp_path / "b.jsonl"} | {option: path}
    said = failure(capsys, "castella", tmp_path, *(part for pair in argv.items() for part in pair))
    assert f"{path} would overwrite the input file {path}" in said
    assert path.read_bytes() == before


def test_castella_file_of_a_split_is_refused_if_it_has_no_windows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release(tmp_path / "castella_val_release.jsonl", blind=True)
    argv = ("castella", tmp_path, "--out", tmp_path / "a.jsonl", "--moments", tmp_path / "b.jsonl")
    assert "no query has relevant_windows, which the split val in the file name needs" in failure(capsys, *argv)


def test_castella_recording_without_duration_is_reported_with_its_line(tmp_path: Path) -> None:
    path = release(tmp_path / "castella_test_release.jsonl")
    path.write_text(path.read_text().replace('"duration": 83, ', ""))
    found = read_castella(tmp_path, keep_missing=True)
    assert [fault.sentence for _, fault in found.faults if "duration" in fault.text] == [
        "line 3: the recording '-AheI8Epim4' has no duration: windows are kept unchanged"
    ]
    assert [clip.seconds for clip in found.clips] == [299.0, None]


@pytest.mark.parametrize("split", ["val", "test"])
def test_windows_of_the_castella_val_and_test_splits_stay_as_published(
    tmp_path: Path, split: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The official scorer drops only windows of no length and reversed ones."""
    path = release(tmp_path / f"castella_{split}_release.jsonl")
    out, moments = tmp_path / "castella.jsonl", tmp_path / "moments.jsonl"
    asked = ["--out", str(out), "--moments", str(moments), "--keep-missing"]
    assert main(["castella", str(tmp_path), *asked]) == 0
    said = capsys.readouterr().out
    assert "2  windows that lie outside the recording: kept as published, because this split is scored" in said
    kept = "line 1: 67AE9ZKvECs_1: the window [200, 4800] ends far after the end of a recording of 299 s: kept as"
    assert f"{path}, {kept}" in said
    expected = [[w for w in windows if w[1] > w[0]] for _, _, _, windows in LINES]
    assert [[list(window) for window in moment.windows or []] for moment in read_moments(moments)] == expected
    queries = [
        (moment, {clip.id: clip for clip in read_manifest(out)}[moment.clip]) for moment in read_moments(moments)
    ]
    write_published(tmp_path / "truth.jsonl", queries)
    edition = get_moments_edition()
    ours, theirs = (read_moment_truth(file, edition).windows() for file in (tmp_path / "truth.jsonl", path))
    answers = {qid: [[0, 83], [200, 4800], [80, 84], [299, 301]] for qid in theirs}
    assert official_figures(score_moments(answers, ours)) == official_figures(score_moments(answers, theirs))


def test_castella_reads_a_list_without_windows_as_the_blind_split(tmp_path: Path) -> None:
    release(tmp_path / "dcase2026_queries.jsonl", blind=True)
    found = read_castella(tmp_path)
    assert [moment.windows for moment in found.moments] == [None] * 3
    assert {clip.split for clip in found.clips} == {"blind"}
    assert not found.faults


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"vid": "-AheI8Epim4"', '"vid": 3', "line 3: vid must be text, not '3'; put it in double quotes"),
        ('"duration": 83', '"duration": 0', "line 3: duration must be a number of seconds above 0, not '0'"),
        ('"duration": 83', '"duration": 1' + 399 * "0", "line 3: duration must be a number of seconds"),
        ("[9, 3]", "[9]", r"line 3: window 3 must be \[start, end\], not '\[9\]'"),
        ("67AE9ZKvECs_2", "67AE9ZKvECs_1", "line 2: the query id '67AE9ZKvECs_1' is already in line 1"),
        (', "relevant_windows": [[299, 301]]', "", "only some queries have relevant_windows"),
        ("A man sings 2", "...", "line 2: the caption '...' has no letter"),
    ],
)
def test_invalid_lines_of_a_castella_release_are_refused(tmp_path: Path, before: str, after: str, said: str) -> None:
    path = release(tmp_path / "castella_test_release.jsonl")
    path.write_text(path.read_text().replace(before, after).replace("[[299, 301]]", "[[9, 30]]"))
    with pytest.raises(DataError, match=said):
        read_castella(tmp_path)


def test_castella_files_named_development_validation_and_evaluation_are_read(tmp_path: Path) -> None:
    """`scenes --moments` names its files so. Only windows that are scored are left as published."""
    for split in ("development", "validation", "evaluation"):
        lines = release(tmp_path / f"{split}_release.jsonl").read_text()
        (tmp_path / f"{split}_release.jsonl").write_text(lines.replace("67AE9ZKvECs", f"{split}_67"))
    found = read_castella(tmp_path, keep_missing=True)
    assert {clip.split for clip in found.clips} == {"development", "validation", "evaluation"}
    done = {path.stem: {fault.done for of, fault in found.faults if of == path} for path in found.files}
    assert done["validation_release"] == done["evaluation_release"] != done["development_release"]


def test_folders_without_castella_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("castella", tmp_path, "--out", tmp_path / "a.jsonl", "--moments", tmp_path / "b.jsonl")
    assert "contains no queries in CASTELLA's format" in failure(capsys, *argv)
    release(tmp_path / "castella.jsonl")
    assert "the file name states no split" in failure(capsys, *argv)
    (tmp_path / "castella.jsonl").rename(tmp_path / "castella_val_release.jsonl")
    release(tmp_path / "clotho_val_release.jsonl")
    assert "both have queries of the split val; remove one of them" in failure(capsys, *argv)
