"""Manifests, tables and query files: round trips, and every invalid line refused with file and line."""

import csv
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from data_tools.errors import KitError
from data_tools.files import replacing
from data_tools.manifest import (
    Clip,
    Query,
    caption_queries,
    check_caption,
    of_split,
    read_manifest,
    read_queries,
    write_manifest,
)
from data_tools.tables import caption_columns, read_table, write_table


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
        uploader="Jürgen",
    )


ODD_NAMES = [" Birds.wav", "Heat duct .wav", "a, b.wav", "x&#39;y.wav", 'quo"te.wav', "línea\u2028.wav", "雨.wav"]


def test_manifest_survives_a_round_trip_and_a_move_and_needs_three_keys(tmp_path, monkeypatch):
    texts = (" outer blanks ", "Ein Hund, 狗叫, كلب", 'with "quotes", commas\nand a line', "line\u2028separator")
    clips = [clip(name, captions=texts) for name in ODD_NAMES]
    write_manifest(tmp_path / "new" / "m.jsonl", clips)
    assert read_manifest(tmp_path / "new" / "m.jsonl") == clips
    lines = (tmp_path / "new" / "m.jsonl").read_bytes().removesuffix(b"\n").split(b"\n")
    assert [json.loads(line)["file_name"] for line in lines] == ODD_NAMES
    inside, outside = clip("in.wav", tmp_path / "old" / "audio"), clip("out.wav", tmp_path / "elsewhere")
    write_manifest(tmp_path / "old" / "m.jsonl", [inside, outside])
    (tmp_path / "old").rename(tmp_path / "moved")
    moved = read_manifest(tmp_path / "moved" / "m.jsonl")
    assert [c.path for c in moved] == [f"{tmp_path}/moved/audio/in.wav", f"{tmp_path}/elsewhere/out.wav"]
    (tmp_path / "m.jsonl").write_text('{"id": "a", "path": "sub/2.wav", "captions": ["rain"]}\n')
    (found,) = read_manifest(tmp_path / "m.jsonl")
    assert found == Clip(id="a", file_name="2.wav", path=str(tmp_path / "sub/2.wav"), captions=["rain"])
    assert (found.split, found.source, found.seconds) == ("development", "own", None)
    monkeypatch.chdir(tmp_path)
    write_manifest(Path("m.jsonl"), [clip("a.wav", tmp_path)])
    assert json.loads(Path("m.jsonl").read_text())["path"] == "a.wav"
    assert read_manifest(Path("m.jsonl"))[0].path == str(tmp_path / "a.wav")


GOOD = asdict(clip("good.wav"))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"seconds": "1.5"}, "seconds"),
        ({"seconds": -1.0}, "seconds"),
        ({"seconds": float("nan")}, "seconds|JSON"),
        ({"split": "dev"}, "split"),
        ({"captions": "A dog."}, "captions"),
        ({"captions": [""]}, "no letter"),
        ({"captions": [" ... !"]}, "no letter"),
        ({"captions": ["['A dog barks.', 'A hound howls']"]}, "list"),
        ({"id": ""}, "id"),
        ({"freesound_id": "²"}, "freesound_id"),
        ({"freesound_id": 7}, "freesound_id"),
        ({"extra": 1}, "extra"),
        ({"id": GOOD["id"]}, "already on line 1"),
    ],
)
def test_invalid_clip_is_refused_with_its_line(tmp_path, change, word):
    path = tmp_path / "m.jsonl"
    bad = {**GOOD, "id": "other", **change}
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(bad) + "\n", encoding="utf-8")
    with pytest.raises(KitError, match=f"m.jsonl, line 2: .*({word})") as caught:
        read_manifest(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b" \n \n", "empty"),
        (b"{}\n\n", "line 1"),
        (json.dumps(GOOD).encode() + b"\n\n", "line 2"),
        (b"[1]\n", "line 1"),
        (b'{"id": \n', "line 1"),
        (b'{"id": "\xe9"}\n', "line 1: not UTF-8"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (None, "no such file"),
    ],
)
def test_invalid_manifest_is_refused(tmp_path, content, words):
    if content is not None:
        (tmp_path / "m.jsonl").write_bytes(content)
    with pytest.raises(KitError, match=words):
        read_manifest(tmp_path / "m.jsonl")


def test_manifest_without_clips_is_not_written(tmp_path):
    with pytest.raises(KitError, match=r"m\.jsonl"):
        write_manifest(tmp_path / "m.jsonl", [])
    assert not list(tmp_path.iterdir())
    with pytest.raises(KitError, match="development"):
        of_split([clip("a.wav")], "test", "m.jsonl")


@pytest.mark.parametrize("text", ["dog", " 7 ", "Пёс лает", "犬が吠える", "कुत्ता", "é"])
def test_captions_in_any_script_are_accepted(text):
    check_caption(text, "here")


def test_queries_of_clips_tables_and_texts(tmp_path, shared):
    assert caption_queries([clip("a.wav", captions=("x", "y")), clip("b.wav", captions=())]) == [
        Query("clotho/development/a.wav#1", "x", ["clotho/development/a.wav"]),
        Query("clotho/development/a.wav#2", "y", ["clotho/development/a.wav"]),
    ]
    path = tmp_path / "q.csv"
    write_table(path, ["caption"], [["first, with comma "], ["second"]])
    assert read_queries(path) == [Query("1", "first, with comma ", None), Query("2", "second", None)]
    path.write_bytes(b"\xef\xbb\xbffile_name,caption_2,caption_1\r\na.wav,two,one\r\nb.wav,four,three\r\n")
    found = [(query.id, query.text) for query in read_queries(path)]
    assert found == [("1.1", "one"), ("1.2", "two"), ("2.1", "three"), ("2.2", "four")]
    path = shared / "data" / "clotho" / "clotho_captions_evaluation.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    queries = read_queries(path)
    assert [query.text for query in queries] == [row[f"caption_{n}"] for row in rows for n in range(1, 6)]
    assert (len(queries), queries[-1].id) == (5225, "1045.5")
    path = tmp_path / "q.txt"
    path.write_bytes("\ufeffA dog, barking\r\n\r\n  rain\n".encode())
    assert read_queries(path) == [Query("1", "A dog, barking", None), Query("2", "rain", None)]
    path.write_text("rain\n...\n")
    with pytest.raises(KitError, match="query 2"):
        read_queries(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("caption\n", "no rows"),
        ("text\ndog\n", "column caption"),
        ("caption,file_name\ndog,a.wav\n", "column caption"),
        ("file_name,caption_2\na.wav,dog\n", "gap"),
        ("file_name,caption_1\n,dog\n", "line 2"),
        ("caption\ndog\n\ncat\n", "line 3: .*blank"),
        ("\ncaption\ndog\n", "caption|blank"),
        ('caption\n""\n', "line 2, caption"),
        ("caption\ndog, cat\n", "line 2: not 1 cells"),
        ("caption,caption\na,b\n", "same name"),
        ('caption\n"dog\n', "line 2: not a CSV"),
        ('caption\ncat\n"dog" cat\n', "line 3: not a CSV"),
        ('caption\n"Stop\nA dog barks\ngo"\nA cat\n', "line 2: .*up to line 4"),
        ("caption\n" + "x" * 200_000 + "\n", "line 2: not a CSV"),
        ("caption\n['A dog', 'A cat']\n", "cells|list"),
    ],
)
def test_invalid_tables_of_queries_are_refused(tmp_path, content, words):
    (tmp_path / "q.csv").write_text(content, encoding="utf-8")
    with pytest.raises(KitError, match=f"q.csv.*({words})"):
        read_queries(tmp_path / "q.csv")


def test_failed_write_keeps_the_old_file_and_no_leftovers(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.txt"]
    assert path.read_text() == "old"


def test_csv_table_is_that_of_clotho_with_any_number_of_caption_columns(tmp_path):
    write_table(tmp_path / "t.csv", ["file_name", "caption_1"], [[" a, b.wav", 'say "hi"'], ["c.wav", "dog"]])
    assert (tmp_path / "t.csv").read_bytes() == b'file_name,caption_1\n" a, b.wav","say ""hi"""\nc.wav,dog\n'
    assert read_table(tmp_path / "t.csv", ["file_name"])[0] == (2, {"file_name": " a, b.wav", "caption_1": 'say "hi"'})
    names = [f"caption_{number}" for number in range(1, 12_001)]
    row = dict.fromkeys(["file_name", *reversed(names), "caption_language"], "")
    assert caption_columns(Path("a.csv"), row) == names
    del row["caption_9"]
    with pytest.raises(KitError, match="gap"):
        caption_columns(Path("a.csv"), row)
