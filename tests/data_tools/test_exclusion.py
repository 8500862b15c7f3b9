"""Exclusion lists in every published form: ids stay text, `Not found` excludes nothing, invalid lists are reported."""

import csv
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from data_files import PUBLISHED, rows, write_rows

from data_tools.datasets.get import SETS
from data_tools.errors import KitError
from data_tools.exclusion import read_exclusions
from data_tools.manifest import Clip, read_manifest, write_manifest
from data_tools.names import is_freesound_id


def clip(number: int, freesound_id: str | None) -> Clip:
    path = f"{number}.wav"
    return Clip(id=f"x/train/{path}", path=path, captions=["A dog barks."], freesound_id=freesound_id)  # type: ignore[call-arg]


def published(shared: Path) -> dict[str, Path]:
    return {
        "official": shared / "data/dcase2025/dcase2025_task6_excluded_freesound_ids.csv",
        "strict": shared / "data/exclusion/blacklist_clotho.full.v2.csv",
        "wavcaps": shared / "data/exclusion/blacklist_exclude_test_ac.json",
        "evaluation": shared / "data/clotho/evaluation_audio_metadata.csv",
    }


def test_every_file_format_of_exclusion_list_is_read(tmp_path):
    (tmp_path / "official.csv").write_text("sound_id\n12\nNot found\n007\n")
    (tmp_path / "aac.csv").write_text("index,id\n0,7\n1,99\n")
    (tmp_path / "wavcaps.json").write_text(json.dumps({"AudioSet": ["Y12.wav"], "FreeSound": ["12", 5, "Not found"]}))
    values = [["é.wav", "k", sound_id, "l", "", "me", "CC0"] for sound_id in ("12", "Not found", "31")]
    write_rows(tmp_path / "metadata.csv", PUBLISHED, values, "iso-8859-1")
    write_manifest(tmp_path / "m.jsonl", [clip(1, "99"), clip(2, None), clip(3, "8")])
    names = ["official.csv", "aac.csv", "wavcaps.json", "metadata.csv", "m.jsonl"]
    lists = read_exclusions([tmp_path / name for name in names])
    assert lists["12"] == lists["7"] == "official.csv", "the first list with the id"
    assert (lists["99"], lists["5"], lists["8"]) == ("aac.csv", "wavcaps.json", "m.jsonl")
    for free in ("1", "Not found", "Y12.wav", "", "12.0", "nan"):
        assert free not in lists
    assert sorted(lists) == ["12", "31", "5", "7", "8", "99"]


def test_ids_are_digits_and_count_once(tmp_path):
    assert all(is_freesound_id(text) for text in ("7", "007", " 7 ", "0", "9" * 18))
    for text in ("", " ", "7a", "²", "٣", "1 2", "-1", "1.0", "9" * 19, "9" * 5_000):
        assert not is_freesound_id(text)
    (tmp_path / "a.csv").write_text("sound_id\n5\n05\n5\n")
    assert read_exclusions([tmp_path / "a.csv", tmp_path / "a.csv"]) == {"5": "a.csv"}
    assert not read_exclusions([])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"sound_id\n7\nx8\n", "a.csv, line 3: the id 'x8' is neither digits nor 'Not found'"),
        ("a.csv", b"sound_id\n354184.0\n", "line 2: the id '354184.0' is neither digits"),
        ("a.csv", b"index,id\n0,-7\n", "line 2: the id '-7' is neither digits"),
        ("a.csv", b"sound_id,x\n7,1\n,1\n", "line 3: the id '' is neither digits"),
        ("a.csv", b"sound_id\nNot found\n", "a.csv: contains no Freesound id"),
        ("a.csv", b"sound_id\n", "no rows"),
        ("a.csv", b"", "a.csv: the file is empty"),
        ("a.csv", b"354184\n265492\n", "a.csv, line 1: not a list of Freesound ids"),
        ("a.csv", b"file_name,caption_1\na.wav,dog\n", "line 1: not a list of Freesound ids"),
        ("a.json", b'{"AudioSet": ["Y.wav"]}', "a.json: not a list of Freesound ids: the JSON has no list with"),
        ("a.json", b'{"FreeSound": {}}', "no list with the key FreeSound"),
        ("a.json", b'{"FreeSound": []}', "a.json: contains no Freesound id"),
        ("a.json", b'{"FreeSound": ["1", null]}', "a.json, FreeSound entry 2: the id 'None' is neither digits"),
        ("a.json", b'{"FreeSound":\n ["1",, "2"]}', "a.json, line 2"),
        ("a.json", b'["1", "2"]', "a.json: not a list of Freesound ids"),
        ("a.jsonl", b'{"id": 1}\n', "a.jsonl, line 1: id"),
    ],
)
def test_invalid_exclusion_lists_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(KitError, match=message) as output:
        read_exclusions([tmp_path / name])
    assert "\n" not in str(output.value)


def test_exclusion_list_is_refused_if_it_is_missing_or_a_folder_or_has_no_valid_id(tmp_path):
    with pytest.raises(KitError, match=r"none.csv: no such file"):
        read_exclusions([tmp_path / "none.csv"])
    with pytest.raises(KitError, match="is a folder; name a file"):
        read_exclusions([tmp_path])
    write_manifest(tmp_path / "m.jsonl", [clip(1, None)])
    with pytest.raises(KitError, match=r"m.jsonl: contains no Freesound id"):
        read_exclusions([tmp_path / "m.jsonl"])
    (tmp_path / "m.jsonl").write_text(json.dumps(asdict(clip(1, "7")) | {"freesound_id": "seven"}) + "\n")
    with pytest.raises(KitError, match=r"m.jsonl, line 1: freesound_id"):
        read_exclusions([tmp_path / "m.jsonl"])


def test_published_exclusion_lists_are_read(shared):
    paths = published(shared)
    lists = read_exclusions(paths.values())
    assert [len(read_exclusions([path])) for path in paths.values()] == [3079, 7941, 2077, 1040]
    assert {file.name for file in SETS["exclusion_lists"].files} == {paths["strict"].name, paths["official"].name}
    official = paths["official"].name
    evaluation = {row["sound_id"] for row in rows(paths["evaluation"])} - {"Not found"}
    assert len(evaluation) == 1040
    assert all(lists[number] == official for number in evaluation)
    with paths["official"].open() as file:
        numbers = [row["sound_id"] for row in csv.DictReader(file)]
    assert len(set(numbers)) == 3080
    assert set(numbers) - {"Not found"} <= read_exclusions([paths["strict"]]).keys()
    wavcaps = set(json.loads(paths["wavcaps"].read_text())["FreeSound"]) - {"Not found"}
    assert len(lists) == len({*read_exclusions([paths["strict"]]), *wavcaps})


@pytest.mark.parametrize("freesound_id", ["١٢", "１２", "12.0", "x", "9" * 19, "1 2"])
def test_nonstandard_freesound_id_in_a_manifest_is_refused(tmp_path, freesound_id):
    """12 is excluded; in another script, or as a number with a point, it would not be matched."""
    line = asdict(clip(1, "12")) | {"freesound_id": freesound_id}
    (tmp_path / "m.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(KitError, match=r"m.jsonl, line 1: freesound_id"):
        read_manifest(tmp_path / "m.jsonl")
    (tmp_path / "ids.csv").write_text(f"sound_id\n12\n{freesound_id}\n")
    with pytest.raises(KitError, match=r"ids.csv, line 3: the id .* is neither digits nor 'Not found'"):
        read_exclusions([tmp_path / "ids.csv"])
