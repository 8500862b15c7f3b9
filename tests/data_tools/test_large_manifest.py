"""Large manifests: checked like any other, with clips read from their lines on demand."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from data_tools.errors import DataError
from data_tools.manifest import Clip, Clips, iter_manifest, of_split, read_manifest, write_manifest

TEXTS = [
    "A dog barks.",
    'Somebody says "yes" twice.',
    "雨が降る",
    "Ein Schloß; ½ Meter",
    "a\tb",
    "\u2028c",
    "9",
    "back\\slash",
]


def clips(count: int) -> list[Clip]:
    return [
        Clip(
            id=f"s/{'test' if n % 5 == 0 else 'train'}/{n}.wav",
            file_name=f"{n}.wav",
            path=f"/data/{n % 3}/{'../' * (n % 2)}{n}.wav",
            seconds=None if n % 7 == 0 else n / 3,
            captions=[TEXTS[(n + k) % len(TEXTS)] for k in range(n % 6)],
            source="s",
            split="test" if n % 5 == 0 else "train",
            freesound_id=str(n) if n % 2 else None,
            licence=None if n % 3 else "CC0",
            uploader=None if n % 4 else 'a "b"',
        )
        for n in range(count)
    ]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every manifest as large, and read it in several blocks."""
    monkeypatch.setattr("data_tools.manifest.LARGE", 0)
    monkeypatch.setattr("data_tools.documents.json_text.BLOCK", 1000)


def outcome(path: Path) -> list[Clip] | str:
    try:
        return list(read_manifest(path))
    except DataError as error:
        return str(error)


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Clip] | str]:
    """Return the result of reading a file as a large manifest, and as a usual one."""
    found = []
    for large in (0, 1 << 40):
        monkeypatch.setattr("data_tools.manifest.LARGE", large)
        found.append(outcome(path))
    return found


@pytest.mark.usefixtures("large")
def test_large_manifest_gives_the_same_clips_by_index_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write_manifest(path, clips(200))
    expected = [clip for _, clip in iter_manifest(path)]
    found = read_manifest(path)
    assert isinstance(found, Clips)
    assert list(found) == expected
    assert (len(found), found[3], found[-1], list(found[5:9])) == (200, expected[3], expected[-1], expected[5:9])
    with pytest.raises(IndexError):
        found[200]
    for split in ("train", "test"):
        part = of_split(found, split, path)
        assert isinstance(part, Sequence)
        assert list(part) == [clip for clip in expected if clip.split == split]
        assert list(of_split(part[3:7], split, path)) == list(part[3:7])
    assert of_split(found, None, path) is found
    with pytest.raises(DataError, match=r"m.jsonl has no split blind; use test, train"):
        of_split(found, "blind", path)


@pytest.mark.usefixtures("large")
def test_first_clip_after_byte_order_mark_is_read_by_index(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write_manifest(path, clips(40))
    expected = [clip for _, clip in iter_manifest(path)]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    found = read_manifest(path)
    assert (found[0], found[1], found[-1], list(found)) == (expected[0], expected[1], expected[-1], expected)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("change", ["longer", "as long"])
def test_large_manifest_changed_while_in_use_is_reported(tmp_path: Path, change: str) -> None:
    path = tmp_path / "m.jsonl"
    write_manifest(path, clips(20))
    found = read_manifest(path)
    path.write_bytes(path.read_bytes() + b"\n" if change == "longer" else path.read_bytes()[::-1])
    for use in (lambda: found[3], lambda: list(found)):
        with pytest.raises(DataError, match=r"m.jsonl was changed while it was in use; run the command again"):
            use()


@pytest.mark.usefixtures("large")
def test_open_large_manifest_keeps_its_content_when_the_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write_manifest(path, clips(20))
    found = read_manifest(path)
    expected = list(found)
    write_manifest(path, clips(3))
    assert list(found) == expected


@pytest.mark.parametrize(
    "text",
    ["", " \n", "id,path\n1,2\n", "{}\n", "[]\n", "\n{}", '{"id": "a"}', "\ufeff", "\ufeff{", '{"id": 1\n', "x" * 3000],
)
def test_invalid_large_manifest_gives_the_error_of_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(text, encoding="utf-8")
    found, expected = both(path, monkeypatch)
    assert isinstance(expected, str)
    assert isinstance(found, str)
    assert found == expected or found.startswith(f"{path}, line 1")


def line(**changes: object) -> str:
    return json.dumps(json.loads(clips(9)[8].model_dump_json()) | changes, ensure_ascii=False)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "latin-1"])
def test_large_manifest_in_another_encoding_gives_the_error_of_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(line(captions=["Caf\u00e9"]) + "\n", encoding=encoding)
    found, expected = both(path, monkeypatch)
    assert found == expected
    assert "m.jsonl, line 1: not UTF-8" in str(found)


@pytest.mark.parametrize(
    "other",
    [line(id="b", captions=["x", *more]) for more in ([" "], ["?!"], ["\n"], ["w " * 512], ["w " * 513], ["é"], [3])]
    + [line(id=text) for text in ("", "s/test/8.wav", "s\\/test/8.wav", 'a"', "a\0")]
    + [line(id="b", seconds=number) for number in (0, 3, -1, 1e400, "3", True, 1e10)]
    + [line(id="b", freesound_id=text) for text in ("", "12", " 12 ", "x", 12, "٣", "1" * 19)]
    + [line(id="b", **{name: ""}) for name in ("file_name", "path", "source", "split", "licence", "uploader")]
    + [line(id="b", split="trian"), line(id="b", more=1), line(id="b")[:-1], line(id="b") + " ", "", line(path="a/./b")]
    + [line(id="b").replace('"source"', '"id": "c", "source"'), line(id="\\ud800").replace("\\\\", "\\"), "\ufeff{}"]
    + ['{"id": "b", "path": "x.wav", "captions": []}', '{"path": "x.wav", "captions": [], "id": "b"}'],
)  # fmt: skip
@pytest.mark.parametrize("end", ["", "\n"])
def test_large_and_small_manifests_give_the_same_result_for_each_kind_of_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, end: str
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f"{line()}\n{other}{end}", encoding="utf-8")
    found, expected = both(path, monkeypatch)
    assert found == expected


def test_randomly_damaged_lines_give_the_same_result_in_large_and_small_manifests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Valid lines with bytes removed, doubled or exchanged, from a fixed seed."""
    draw, path = random.Random(3), tmp_path / "m.jsonl"
    usual = [clip.model_dump_json().encode() for clip in clips(60)]
    refused = 0
    for _ in range(1500):
        data = bytearray(draw.choice(usual))
        at = draw.randrange(len(data))
        data[at : at + draw.randint(0, 2)] = draw.choice(
            [b"", b'"', b"\\", b"\n", b",", b" ", b"0", b"\xff", b"}", b"a"]
        )
        path.write_bytes(usual[1] + b"\n" + bytes(data) + b"\n")
        found, expected = both(path, monkeypatch)
        assert found == expected, bytes(data)
        refused += isinstance(found, str)
    assert 700 < refused < 1450
