"""Tables of users: columns, rows of one file, splits, delimiters, and refused tables."""

import shutil
import unicodedata
from pathlib import Path

import pytest

from data_tools.__main__ import main
from data_tools.manifest import read_manifest
from data_tools.words import vocabulary_of, words_of
from system.losses.cider import regex_tokens


@pytest.fixture
def sounds(world, tmp_path):
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


def test_table_rows_of_one_file_become_one_clip_with_captions_of_one_or_several_columns(sounds, capsys):
    text = 'file,caption,note\n0.wav,"a dog, barking",x\nsub/2.wav,rain,\n0.wav,a terrier,\n'
    status, output = table(sounds, capsys, text, "--caption", "caption")
    assert (status, output.strip().rpartition("m.jsonl: ")[2]) == (0, "2 clips, 3 captions")
    first, second = read_manifest(sounds.parent / "m.jsonl")
    assert (first.id, first.captions) == ("my/development/0.wav", ["a dog, barking", "a terrier"])
    assert (second.file_name, second.path) == ("sub/2.wav", str(sounds / "sub/2.wav"))
    assert first.seconds > 0.5
    text = "file;a;b\n0.wav;x 1;x 2\n1.wav;;y 2\n"
    more = ("--caption", "b", "--caption", "a", "--split", "train", "--name", "mine")
    assert table(sounds, capsys, text, *more)[0] == 0
    first, second = read_manifest(sounds.parent / "m.jsonl")
    assert (first.captions, second.captions) == (["x 2", "x 1"], ["y 2"])
    assert second.id == "mine/train/1.wav"
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
def test_invalid_caption_tables_are_refused(sounds, capsys, text, more, word):
    status, output = table(sounds, capsys, text, *more)
    assert (status, word in output) == (1, True), output
    assert not (sounds.parent / "m.jsonl").exists()


ONE_FILE = ["0.wav", "./0.wav", "../sounds/0.wav", "sub//../0.wav", "l.wav", "linked/0.wav", "{sounds}/0.wav"]


@pytest.fixture
def linked(sounds):
    (sounds / "l.wav").symlink_to("0.wav")
    (sounds / "linked").symlink_to(sounds)
    return sounds


@pytest.mark.parametrize("name", ONE_FILE)
def test_audio_file_in_two_splits_of_a_table_stays_only_in_the_held_out_split(linked, capsys, name):
    name = name.format(sounds=linked)
    for first, second, kept in (("train", "test", 1), ("test", "val", 0), ("val", "development", 0)):
        text = f"file,caption,part\n0.wav,A dog,{first}\n{name},A cat,{second}\n"
        assert table(linked, capsys, text, "--caption", "caption", "--split-column", "part")[0] == 0
        (clip,) = read_manifest(linked.parent / "m.jsonl")
        assert (clip.split, clip.captions) == ((first, second)[kept], [("A dog", "A cat")[kept]])


def test_table_rows_with_different_paths_of_one_file_become_one_clip(linked, capsys):
    rows = [f"{name.format(sounds=linked)},Caption {number}\n" for number, name in enumerate(ONE_FILE)]
    assert table(linked, capsys, "file,caption\n" + "".join(rows), "--caption", "caption")[0] == 0
    (clip,) = read_manifest(linked.parent / "m.jsonl")
    assert (clip.file_name, len(clip.captions)) == ("0.wav", len(ONE_FILE))


CAPTIONS = {
    "Un café à l'Été": ["un", "café", "à", "l'été"],
    "Čeština, žluťoučký kůň": ["čeština", "žluťoučký", "kůň"],
    "한국어 소리": ["한국어", "소리"],
    "ベルが鳴る": ["ベルが鳴る"],
    "İstanbul": ["istanbul"],  # its lower case is i with a dot that no letter takes in
    "x̄ and ŷ": ["x", "and", "ŷ"],
}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("caption", CAPTIONS)
def test_decomposed_letters_are_part_of_words(caption, form):
    text = unicodedata.normalize(form, caption)
    expected = [unicodedata.normalize("NFC", word) for word in CAPTIONS[caption]]
    assert words_of(text) == expected
    assert regex_tokens(text) == expected


def test_vocabulary_merges_composed_and_decomposed_words():
    assert vocabulary_of(["cafe\u0301 bell", "caf\u00e9"]) == ["caf\u00e9", "bell"]
