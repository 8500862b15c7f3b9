"""Tables of one's own: columns, rows of one file, splits, delimiters, and what is refused; short lines of manifests."""

import json
import shutil
from pathlib import Path

import pytest

from data_tools.__main__ import main
from data_tools.errors import DataError
from data_tools.manifest import read_manifest


@pytest.fixture
def sounds(world: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "sounds"
    (folder / "sub").mkdir(parents=True)
    for n, tone in enumerate(sorted((world.parent / "evaluation").glob("*.wav"))[:3]):
        shutil.copy(tone, folder / ("sub" if n == 2 else ".") / f"{n}.wav")
    return folder


def table(sounds: Path, capsys: pytest.CaptureFixture[str], text: str, *more: str) -> tuple[int, str]:
    path = sounds.parent / "my.csv"
    path.write_text(text, encoding="utf-8")
    argv = ["table", str(path), "--audio", "file", "--folder", str(sounds), "--out", str(sounds.parent / "m.jsonl")]
    capsys.readouterr()
    status = main([*argv, *more])
    output = capsys.readouterr()
    return status, output.out + output.err


def test_rows_of_one_file_are_one_clip(sounds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'file,caption,note\n0.wav,"a dog, barking",x\nsub/2.wav,rain,\n0.wav,a terrier,\n'
    status, output = table(sounds, capsys, text, "--caption", "caption")
    assert (status, output.strip().rpartition("m.jsonl: ")[2]) == (0, "2 clips, 3 captions")
    first, second = read_manifest(sounds.parent / "m.jsonl")
    assert (first.id, first.captions) == ("my/development/0.wav", ["a dog, barking", "a terrier"])
    assert (second.file_name, second.path) == ("sub/2.wav", str(sounds / "sub/2.wav"))
    assert first.seconds is not None
    assert first.seconds > 0.5


def test_several_columns_of_captions_may_have_empty_cells(sounds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "file;a;b\n0.wav;x 1;x 2\n1.wav;;y 2\n"
    more = ("--caption", "b", "a", "--delimiter", "semicolon", "--split", "train", "--name", "mine")
    assert table(sounds, capsys, text, *more)[0] == 0
    first, second = read_manifest(sounds.parent / "m.jsonl")
    assert (first.captions, second.captions) == (["x 2", "x 1"], ["y 2"])
    assert second.id == "mine/train/1.wav"


def test_a_column_may_say_the_split(sounds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "file\tcaption\tpart\n0.wav\ta\ttrain\n1.wav\tb\ttest \nnone.wav\tc\ttrain\n"
    more = ("--caption", "caption", "--split-column", "part", "--delimiter", "tab")
    status, output = table(sounds, capsys, text, *more)
    assert status == 0
    assert "3 clips, 3 captions, 1 without readable audio" in output
    clips = read_manifest(sounds.parent / "m.jsonl")
    assert [(clip.split, clip.seconds is None) for clip in clips] == [
        ("train", False),
        ("test", False),
        ("train", True),
    ]


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("name,caption\n0.wav,a\n", ["--caption", "caption"], "no column file; the first line has name, caption"),
        ("file,caption\n0.wav,a\n", ["--caption", "text"], "no column text; the first line has file, caption"),
        ("file,caption\n0.wav,\n", ["--caption", "caption"], "line 2, caption: the caption is empty"),
        ("file,a,b\n0.wav,,\n", ["--caption", "a", "b"], "line 2, a: the caption is empty"),
        ("file,caption\n,a\n", ["--caption", "caption"], "line 2: the column file is empty"),
        (
            "file,caption\n0.wav,a,b\n",
            ["--caption", "caption"],
            "3 values for 2 columns; quote values that hold a comma",
        ),
        ("file;caption\n0.wav;a;b\n", ["--caption", "caption", "--delimiter", "semicolon"], "hold the delimiter ';'"),
        ("file,caption,part\n0.wav,a,dev\n", ["--caption", "caption", "--split-column", "part"], "no split 'dev'; use"),
        (
            "file,caption,part\n0.wav,a,train\n0.wav,b,test\n",
            ["--caption", "caption", "--split-column", "part"],
            "line 3: 0.wav is in the split train above, and in test here; give it one",
        ),
        ("file,caption\nx.wav,a\ny.wav,b\n", ["--caption", "caption"], "none of the table's 2 audio files can be read"),
        ("file,caption\n0.wav,a\n", ["--caption", "caption", "--name", "a/b"], "may only have letters"),
    ],
)
def test_what_is_refused(
    sounds: Path, capsys: pytest.CaptureFixture[str], text: str, more: list[str], message: str
) -> None:
    status, output = table(sounds, capsys, text, *more)
    assert (status, message in output) == (1, True), output
    assert not (sounds.parent / "m.jsonl").exists()


def test_a_line_of_a_manifest_needs_id_path_and_captions(sounds: Path) -> None:
    path = sounds / "m.jsonl"
    path.write_text(json.dumps({"id": "a", "path": "sub/2.wav", "captions": ["rain"]}) + "\n")
    (clip,) = read_manifest(path)
    assert (clip.file_name, clip.path, clip.split, clip.source) == (
        "2.wav",
        str(sounds / "sub/2.wav"),
        "development",
        "own",
    )
    assert (clip.seconds, clip.freesound_id, clip.licence, clip.uploader) == (None, None, None, None)
    path.write_text(json.dumps({"id": "a", "path": "sub/2.wav"}) + "\n")
    with pytest.raises(DataError, match="captions: is missing"):
        read_manifest(path)
