"""Manifests and query files: round trips, and every invalid line refused with file and line."""

import csv
import doctest
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from data_tools import files, tables
from data_tools.__main__ import main
from data_tools.errors import DataError
from data_tools.files import replacing
from data_tools.manifest import (
    MAX_WORDS,
    SPLITS,
    TEST_SPLITS,
    Clip,
    Query,
    caption_queries,
    check_caption,
    read_manifest,
    read_queries,
    write_manifest,
    write_queries,
)
from data_tools.tables import read_table, write_table


def clip(name: str, folder: Path = Path("/audio"), captions: tuple[str, ...] = ("A dog barks.",)) -> Clip:
    return Clip(
        id=f"clotho/development/{name}",
        file_name=name,
        path=str(folder / name),
        seconds=1.5,
        captions=list(captions),
        source="clotho",
        split="development",
        freesound_id="123",
        licence=None,
        uploader="Jürgen",
    )


ODD_NAMES = [
    " Ambience Birds.wav",
    "Heat duct .wav",
    "a, b.wav",
    "x&#39;y.wav",
    'quo"te.wav',
    "línea\u2028.wav",
    "雨.wav",
]


def test_manifest_survives_a_round_trip(tmp_path: Path) -> None:
    texts = (
        " outer blanks ",
        "Ein Hund bellt, 狗叫, كلب ينبح",
        'with "quotes", commas\nand a line',
        "line\u2028separator",
    )
    clips = [clip(name, captions=texts) for name in ODD_NAMES]
    write_manifest(tmp_path / "new" / "m.jsonl", clips)
    assert read_manifest(tmp_path / "new" / "m.jsonl") == clips
    lines = (tmp_path / "new" / "m.jsonl").read_bytes().removesuffix(b"\n").split(b"\n")
    assert [json.loads(line)["file_name"] for line in lines] == ODD_NAMES


def test_clip_paths_below_a_manifest_stay_valid_after_its_folder_moves(tmp_path: Path) -> None:
    inside, outside = clip("in.wav", tmp_path / "old" / "audio"), clip("out.wav", tmp_path / "elsewhere")
    write_manifest(tmp_path / "old" / "m.jsonl", [inside, outside])
    (tmp_path / "old").rename(tmp_path / "moved")
    moved = read_manifest(tmp_path / "moved" / "m.jsonl")
    assert [c.path for c in moved] == [
        str(tmp_path / "moved" / "audio" / "in.wav"),
        str(tmp_path / "elsewhere/out.wav"),
    ]


def test_relative_manifest_path_gives_absolute_clip_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_manifest("m.jsonl", [clip("a.wav", tmp_path)])
    assert json.loads(Path("m.jsonl").read_text())["path"] == "a.wav"
    assert read_manifest("m.jsonl")[0].path == str(tmp_path / "a.wav")


GOOD = clip("good.wav").model_dump()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": "1.5"}, r"line 2: not a clip \(seconds: must be a number"),
        ({"seconds": -1.0}, "line 2.*seconds.*must be 0 or more"),
        ({"seconds": float("nan")}, "line 2: NaN is not a number in JSON"),
        ({"split": "dev"}, "line 2.*split.*'development'"),
        ({"captions": "A dog."}, "line 2.*captions.*must be a list"),
        ({"captions": [""]}, "line 2: the caption is empty"),
        ({"captions": [" ... !"]}, "line 2: the caption ' ... !' has no letter or digit"),
        ({"captions": ["dog " * 2000]}, "line 2: the caption has 2000 words, more than 512"),
        ({"id": ""}, "line 2.*id.*must not be empty"),
        ({"freesound_id": "9" * 19}, "line 2.*freesound_id: not a Freesound id, which is a number"),
        ({"freesound_id": "²"}, "line 2.*freesound_id: not a Freesound id"),
        ({"freesound_id": 7}, "line 2.*freesound_id.*must be text"),
        ({"extra": 1}, "line 2.*extra: unknown key"),
        ({"id": GOOD["id"]}, "line 2: the id 'clotho/development/good.wav' is already on line 1"),
    ],
)
def test_invalid_clip_is_refused_with_its_line(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "m.jsonl"
    bad = {**GOOD, "id": "other", **change}
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(bad) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        read_manifest(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b" \n \n", "the file is empty"),
        (b"{}\n\n", "line 1: not a clip .*id: is missing"),
        (json.dumps(GOOD).encode() + b"\n\n", "line 2: the line is blank"),
        (b"[1]\n", "is not a manifest"),
        (b'{"id": \n', "line 1: not JSON"),
        (b'{"id": "\xe9"}\n', "line 1: not UTF-8 .byte 0xe9.; save it as UTF-8"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
    ],
)
def test_invalid_manifest_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_manifest(tmp_path / "m.jsonl")


def test_reading_a_missing_file_or_folder_and_writing_an_empty_manifest_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_manifest(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="is a folder; name a file"):
        read_manifest(tmp_path)
    with pytest.raises(DataError, match="nothing is left to write"):
        write_manifest(tmp_path / "m.jsonl", [])
    with pytest.raises(DataError, match=r"line 2: the id .* is already on line 1"):
        write_manifest(tmp_path / "m.jsonl", [clip("a.wav"), clip("a.wav")])
    assert not list(tmp_path.iterdir())


def test_allowed_split_names_and_test_splits_match_the_published_data_sets() -> None:
    assert set(SPLITS) == {"development", "validation", "evaluation", "train", "val", "test", "blind"}
    assert {"evaluation", "test", "blind"} == TEST_SPLITS


@pytest.mark.parametrize("text", ["dog", " 7 ", "Пёс лает", "犬が吠える", "कुत्ता", "é", "w " * MAX_WORDS])
def test_captions_in_any_script_are_accepted(text: str) -> None:
    check_caption(text, "here")


@pytest.mark.parametrize("text", ["", " \t\n", "...", "?!", "🐕", "w " * (MAX_WORDS + 1)])
def test_captions_without_words_or_too_long_are_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"^here: the caption "):
        check_caption(text, "here")


def test_each_caption_of_a_clip_becomes_a_query_with_that_clip_as_relevant() -> None:
    assert caption_queries([clip("a.wav", captions=("x", "y")), clip("b.wav", captions=())]) == [
        Query(id="clotho/development/a.wav#1", text="x", relevant=["clotho/development/a.wav"]),
        Query(id="clotho/development/a.wav#2", text="y", relevant=["clotho/development/a.wav"]),
    ]


def test_queries_survive_a_round_trip(tmp_path: Path) -> None:
    queries = [Query(id="1", text=" Wind, 風 ", relevant=None), Query(id="2", text="dog", relevant=["a", "b"])]
    write_queries(tmp_path / "q.jsonl", queries)
    assert read_queries(tmp_path / "q.jsonl") == queries


def test_queries_of_csv_files_are_numbered_by_row(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    write_table(path, ["caption"], [["first, with comma "], ["second"]])
    assert read_queries(path) == [
        Query(id="1", text="first, with comma ", relevant=None),
        Query(id="2", text="second", relevant=None),
    ]
    write_table(path, ["file_name", "caption_2", "caption_1"], [["a.wav", "two", "one"], ["b.wav", "four", "three"]])
    found = [(query.id, query.text) for query in read_queries(path)]
    assert found == [("1.1", "one"), ("1.2", "two"), ("2.1", "three"), ("2.2", "four")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.csv", "caption\n", "has a header but no rows"),
        ("q.csv", "text\ndog\n", "needs the column caption, or file_name"),
        ("q.csv", "caption,file_name\ndog,a.wav\n", "needs the column caption, or file_name"),
        ("q.csv", "file_name,caption_2\na.wav,dog\n", "needs the columns caption_1, caption_2 .. without a gap"),
        ("q.csv", "caption\ndog\n\ncat\n", "line 3: the line is blank"),
        ("q.csv", 'caption\n""\n', "line 2, caption: the caption is empty"),
        ("q.csv", "caption\ndog, cat\n", "line 2: 2 values for 1 columns"),
        ("q.csv", "caption,caption\na,b\n", "two columns have the same name"),
        ("q.csv", 'caption\n"dog\n', "line 2: not a CSV table"),
        ("q.csv", 'caption\n"dog" cat\n', "line 2: not a CSV table"),
        ("q.txt", "dog\n", "one that ends in .jsonl or .csv"),
        ("q.jsonl", '{"id": "1", "text": "dog"}\n', "line 1: not a query .relevant: is missing"),
        ("q.jsonl", '{"id": "1", "text": "", "relevant": null}\n', "line 1: the caption is empty"),
        ("q.jsonl", '{"id": "1", "text": "a", "relevant": null}\n' * 2, "line 2: the id '1' is already on line 1"),
    ],
)
def test_invalid_queries_are_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_queries(tmp_path / name)


def test_csv_field_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("caption\n" + "x" * 200_000 + "\n")
    with pytest.raises(DataError, match=r"line 2: not a CSV table .field larger"):
        read_queries(tmp_path / "q.csv")


def test_byte_order_mark_of_a_csv_is_not_part_of_its_header(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("caption\ndog\n", encoding="utf-8-sig")
    assert [query.text for query in read_queries(tmp_path / "q.csv")] == ["dog"]


def test_clotho_captions_become_queries_verbatim(shared: Path) -> None:
    path = shared / "data" / "clotho" / "clotho_captions_evaluation.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    queries = read_queries(path)
    assert len(queries) == 5225
    assert [query.text for query in queries] == [row[f"caption_{n}"] for row in rows for n in range(1, 6)]
    assert queries[-1].id == "1045.5"


def test_failed_write_of_a_manifest_keeps_the_old_one_and_no_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            assert temporary.parent == path.parent
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.txt"]
    assert path.read_text() == "old"


def test_csv_table_is_written_in_the_format_of_clotho(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", ["file_name", "caption_1"], [[" a, b.wav", 'say "hi"'], ["c.wav", "dog"]])
    assert (tmp_path / "t.csv").read_bytes() == b'file_name,caption_1\n" a, b.wav","say ""hi"""\nc.wav,dog\n'
    assert read_table(tmp_path / "t.csv", ["file_name"])[0] == (2, {"file_name": " a, b.wav", "caption_1": 'say "hi"'})


def test_clip_paths_with_two_dots_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a link, `..` is above its target, as for every program."""
    (tmp_path / "real/deep").mkdir(parents=True)
    (tmp_path / "real/sounds").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here/link").symlink_to(tmp_path / "real/deep")
    soundfile.write(tmp_path / "real/sounds/a.wav", np.zeros(160), 16_000)
    monkeypatch.chdir(tmp_path / "here")
    for given in ("../real/sounds", "link/../sounds", str(tmp_path / "here/../real/./sounds")):
        assert main(["blind", given, "--out", "m.jsonl"]) == 0
        assert json.loads(Path("m.jsonl").read_text())["path"] == str(tmp_path / "real/sounds/a.wav")
    (found,) = read_manifest("m.jsonl")
    assert main(["blind", "link/../sounds", "--out", "../real/m.jsonl"]) == 0
    assert json.loads((tmp_path / "real/m.jsonl").read_text())["path"] == "sounds/a.wav", "the folder can move"
    Path("own.jsonl").write_text(json.dumps({"id": "a", "path": "link/../sounds/a.wav", "captions": ["x"]}) + "\n")
    assert [clip.path for clip in read_manifest("own.jsonl")] == [found.path]
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for nowhere in ("../loop/../a.wav", "a\0b/../a.wav"):
        Path("own.jsonl").write_text(json.dumps({"id": "a", "path": nowhere, "captions": ["x"]}) + "\n")
        assert main(["check", "own.jsonl"]) == 1, "a missing file"
    assert doctest.testmod(files) == (0, 3)
    assert doctest.testmod(tables) == (0, 5)
