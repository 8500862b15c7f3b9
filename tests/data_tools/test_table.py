"""Tables of users: columns, rows of one file, splits, delimiters, and refused tables."""

import shutil
from pathlib import Path

import pytest

from data_tools.__main__ import main
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


def test_table_rows_with_the_same_audio_file_become_one_clip(sounds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'file,caption,note\n0.wav,"a dog, barking",x\nsub/2.wav,rain,\n0.wav,a terrier,\n'
    status, output = table(sounds, capsys, text, "--caption", "caption")
    assert (status, output.strip().rpartition("m.jsonl: ")[2]) == (0, "2 clips, 3 captions")
    first, second = read_manifest(sounds.parent / "m.jsonl")
    assert (first.id, first.captions) == ("my/development/0.wav", ["a dog, barking", "a terrier"])
    assert (second.file_name, second.path) == ("sub/2.wav", str(sounds / "sub/2.wav"))
    assert first.seconds is not None
    assert first.seconds > 0.5


def test_table_with_several_caption_columns_may_have_empty_cells(
    sounds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "file;a;b\n0.wav;x 1;x 2\n1.wav;;y 2\n"
    more = ("--caption", "b", "--caption", "a", "--split", "train", "--name", "mine")
    assert table(sounds, capsys, text, *more)[0] == 0
    first, second = read_manifest(sounds.parent / "m.jsonl")
    assert (first.captions, second.captions) == (["x 2", "x 1"], ["y 2"])
    assert second.id == "mine/train/1.wav"


def test_table_verb_reads_the_split_of_each_row_from_option_split_column(
    sounds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "file\tcaption\tpart\n0.wav\ta\ttrain\n1.wav\tb\ttest \nnone.wav\tc\ttrain\n"
    more = ("--caption", "caption", "--split-column", "part")
    status, output = table(sounds, capsys, text, *more)
    assert status == 0
    assert "3 clips, 3 captions, 1 without readable audio" in output
    clips = read_manifest(sounds.parent / "m.jsonl")
    found = [(clip.split, clip.seconds is None) for clip in clips]
    assert found == [("train", False), ("test", False), ("train", True)]


@pytest.mark.parametrize(
    ("text", "more", "word"),
    [
        ("name,caption\n0.wav,a\n", ["--caption", "caption"], "file"),
        ("file,caption\n0.wav,a\n", ["--caption", "text"], "text"),
        ("file,caption\n0.wav,\n", ["--caption", "caption"], "line 2, caption"),
        ("file,a,b\n0.wav,,\n", ["--caption", "a", "--caption", "b"], "line 2, a"),
        ("file,caption\n,a\n", ["--caption", "caption"], "line 2"),
        ("file,caption\n0.wav,a,b\n", ["--caption", "caption"], "line 2"),
        ("file,caption,part\n0.wav,a,dev\n", ["--caption", "caption", "--split-column", "part"], "'dev'"),
        ("file,caption\nx.wav,a\ny.wav,b\n", ["--caption", "caption"], "--folder"),
        ("file,caption\n0.wav,a\n", ["--caption", "caption", "--name", "a/b"], "--name"),
        ('file,caption\n0.wav,"A dog,\nthen a cat"\n', ["--caption", "caption"], "line 2"),
        ("file,caption\n0.wav,\"['A dog', 'A cat']\"\n", ["--caption", "caption"], "list"),
    ],
)
def test_invalid_caption_tables_are_refused(
    sounds: Path, capsys: pytest.CaptureFixture[str], text: str, more: list[str], word: str
) -> None:
    status, output = table(sounds, capsys, text, *more)
    assert (status, word in output) == (1, True), output
    assert not (sounds.parent / "m.jsonl").exists()


ONE_FILE = ["0.wav", "./0.wav", "../sounds/0.wav", "sub//../0.wav", "l.wav", "linked/0.wav", "{sounds}/0.wav"]


@pytest.fixture
def linked(sounds: Path) -> Path:
    (sounds / "l.wav").symlink_to("0.wav")
    (sounds / "linked").symlink_to(sounds)
    return sounds


@pytest.mark.parametrize("name", ONE_FILE)
def test_audio_file_in_two_splits_of_a_table_stays_only_in_the_held_out_split(
    linked: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    name = name.format(sounds=linked)
    for first, second, kept in (("train", "test", 1), ("test", "val", 0), ("val", "development", 0)):
        text = f"file,caption,part\n0.wav,A dog,{first}\n{name},A cat,{second}\n"
        assert table(linked, capsys, text, "--caption", "caption", "--split-column", "part")[0] == 0
        (clip,) = read_manifest(linked.parent / "m.jsonl")
        assert (clip.split, clip.captions) == ((first, second)[kept], [("A dog", "A cat")[kept]])


def test_table_rows_with_different_paths_of_one_file_become_one_clip(
    linked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{name.format(sounds=linked)},Caption {number}\n" for number, name in enumerate(ONE_FILE)]
    assert table(linked, capsys, "file,caption\n" + "".join(rows), "--caption", "caption")[0] == 0
    (clip,) = read_manifest(linked.parent / "m.jsonl")
    assert (clip.file_name, len(clip.captions)) == ("0.wav", len(ONE_FILE))
