"""Tables of users: columns, rows of one file, splits, delimiters, and refused tables; short lines of manifests."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from data_tools.__main__ import main
from data_tools.errors import DataError
from data_tools.manifest import read_manifest
from data_tools.tables import read_table


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
    more = ("--caption", "b", "a", "--delimiter", "semicolon", "--split", "train", "--name", "mine")
    assert table(sounds, capsys, text, *more)[0] == 0
    first, second = read_manifest(sounds.parent / "m.jsonl")
    assert (first.captions, second.captions) == (["x 2", "x 1"], ["y 2"])
    assert second.id == "mine/train/1.wav"


def test_table_verb_reads_the_split_of_each_row_from_option_split_column(
    sounds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
            "3 values for 2 columns; quote values that contain a comma",
        ),
        (
            "file;caption\n0.wav;a;b\n",
            ["--caption", "caption", "--delimiter", "semicolon"],
            "contain the delimiter ';'",
        ),
        (
            "file,caption,part\n0.wav,a,dev\n",
            ["--caption", "caption", "--split-column", "part"],
            "unknown split 'dev'; use",
        ),
        (
            "file,caption,part\n0.wav,a,train\n0.wav,b,test\n",
            ["--caption", "caption", "--split-column", "part"],
            "line 3: 0.wav has the split test here, but train above; give it one",
        ),
        ("file,caption\nx.wav,a\ny.wav,b\n", ["--caption", "caption"], "cannot read any of the table's 2 audio files"),
        ("file,caption\n0.wav,a\n", ["--caption", "caption", "--name", "a/b"], "may only have letters"),
        ("file,caption\n0\0.wav,a\n", ["--caption", "caption"], "line 2: not UTF-8 but probably UTF-16"),
    ],
)
def test_invalid_caption_tables_are_refused(
    sounds: Path, capsys: pytest.CaptureFixture[str], text: str, more: list[str], message: str
) -> None:
    status, output = table(sounds, capsys, text, *more)
    assert (status, message in output) == (1, True), output
    assert not (sounds.parent / "m.jsonl").exists()


SWALLOWING = 'file,caption\n0.wav,"Stop\n1.wav,A dog barks\nsub/2.wav,go"\n3.wav,A cat\n'


@pytest.mark.parametrize(
    ("text", "more", "captions"),
    [
        (SWALLOWING, (), ['"Stop', "A dog barks", 'go"', "A cat"]),
        (SWALLOWING.replace("\n", "\r\n"), (), ['"Stop', "A dog barks", 'go"', "A cat"]),
        (SWALLOWING.replace(",", ";"), ("--delimiter", "semicolon"), ['"Stop', "A dog barks", 'go"', "A cat"]),
        (SWALLOWING.replace(",", "\t"), ("--delimiter", "tab"), ['"Stop', "A dog barks", 'go"', "A cat"]),
        ('file\tcaption\n0.wav\t"Stop" he says\n', ("--delimiter", "tab"), ['"Stop" he says']),
        ('file\tcaption\n0.wav\t"Stop"\n', ("--delimiter", "tab", "--quoting", "none"), ['"Stop"']),
        ('file\tcaption\n0.wav\t"""Stop"" he says"\n', ("--delimiter", "tab", "--quoting", "csv"), ['"Stop" he says']),
        ('file,caption\n0.wav,"Stop\n', ("--quoting", "none"), ['"Stop']),
        ('file,caption\n0.wav,"A dog,\nthen a cat, loudly"\n', (), ["A dog,\nthen a cat, loudly"]),
        ('caption,file\n"A dog\nbarks",0.wav\n', (), ["A dog\nbarks"]),
    ],
)
def test_unclosed_quote_at_the_start_of_a_cell_does_not_swallow_rows(
    sounds: Path, capsys: pytest.CaptureFixture[str], text: str, more: tuple[str, ...], captions: list[str]
) -> None:
    (sounds.parent / "my.csv").write_bytes(text.encode())
    out = sounds.parent / "m.jsonl"
    argv = ["table", str(sounds.parent / "my.csv"), "--audio", "file", "--folder", str(sounds), "--out", str(out)]
    assert main([*argv, "--caption", "caption", *more]) == 0
    assert [caption for clip in read_manifest(out) for caption in clip.captions] == captions


@pytest.mark.parametrize(
    ("text", "captions"),
    [
        ('name,caption\nx.wav,"A big crowd.\nAbout 1,000 people cheer"\ny.wav,A dog\n', 2),
        ('name,caption\nx.wav,"A crowd.\nAbout 1,000 people.\nThey cheer, too"\n', 1),
        ('name,caption\nx.wav,"A ""big"" crowd.\nAbout 1,000 people"\n', 1),
        ('caption,name\n"A crowd.\nAbout 1,000 people",x.wav\nA dog,y.wav\n', 2),
        ('id,caption,year\n12,"Two lines\nof 1,000 words,19",3\n13,a dog,4\n', 2),
    ],
)
def test_csv_cell_with_line_breaks_is_read_unchanged(text: str, captions: int, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert [row for _, row in read_table(tmp_path / "t.csv", ["caption"])] == [
        dict(row) for row in csv.DictReader(io.StringIO(text, newline=""))
    ]
    assert len(read_table(tmp_path / "t.csv", ["caption"])) == captions


@pytest.mark.parametrize(
    "text",
    [
        'name,caption\nx.wav,"Stop, he says\ny.wav,A dog, a cat\nw.wav,go"\n',
        'name,caption\nx.wav,"Stop\ny.WAV,A ""dog""\nw.wav,go"\n',
        'caption,name\n"Stop, now,x.wav\nA dog, a cat,y.wav\ngo",w.wav\n',
        'caption\n"Stop\nA dog\ngo"\n',
    ],
)
def test_quoted_cell_that_seems_to_contain_rows_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=r"t.csv, line 2: a quoted cell extends to line [34], over lines that begin"):
        read_table(tmp_path / "t.csv", ["caption"])


def test_rows_recovered_after_an_unclosed_quote_cause_a_warning(sounds: Path, caplog: pytest.LogCaptureFixture) -> None:
    (sounds.parent / "my.csv").write_text(SWALLOWING)
    rows = read_table(sounds.parent / "my.csv", ["file"])
    assert [line for line, _ in rows] == [2, 3, 4, 5]
    assert "my.csv, line 2: unclosed quotes (1)" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('caption\n"Stop\nA dog barks\ngo"\nA cat\n', "line 2: a quoted cell extends to line 4"),
        ('file,caption\na,"Stop\nb,A dog, barking\nc,go"\n', "line 2: a quoted cell extends to line 4"),
        ('file,caption\na,"Stop\nb,""A dog""\nc,go"\n', "line 2: a quoted cell extends to line 4"),
        ('file,caption\na,"Stop\nb,A dog\n', "line 2: not a CSV table"),
        ('file,caption\na,A cat\nb,"Stop" he says\n', "line 3: not a CSV table"),
    ],
)
def test_csv_table_with_ambiguous_quotes_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_table(tmp_path / "a.csv", [])
    assert "if a quote is text, write it twice" in str(caught.value)


def test_quote_that_opens_a_column_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('file,"caption\na,x\nb,y"\nc,z\n')
    with pytest.raises(DataError, match=r"line 1: a quote .*line 3; write all column names"):
        read_table(tmp_path / "a.csv", ["caption"])


def test_table_rows_with_too_few_or_too_many_values_are_reported_in_one_error(tmp_path: Path) -> None:
    rows = ["1,a,0,A dog, barking", "2,b,0", "", "3,c,0,A cat", *["4,d,0,x,y"] * 20]
    (tmp_path / "a.csv").write_text("\n".join(["id,youtube_id,start_time,caption", *rows, ""]))
    with pytest.raises(DataError, match=r"a\.csv: 23 lines in all are blank") as caught:
        read_table(tmp_path / "a.csv", [])
    first, second, third, *others = str(caught.value).splitlines()
    assert "line 2: 5 values for 4 columns; quote values that contain a comma" in first
    assert "line 3: 3 values for 4 columns; complete the row" in second
    assert "line 4: the line is blank; remove it" in third
    assert len(others) == 8


def test_quoted_cells_between_tabs_need_the_quoting_option(sounds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'file\tcaption\n0.wav\t"A dog, barking"\n'
    status, output = table(sounds, capsys, text, "--caption", "caption", "--delimiter", "tab")
    assert status == 1
    assert "line 2: the whole cell of caption is in quotes ('\"A dog, barking\"'); add --quoting csv" in output


NAMES_OF_ONE_FILE = [
    "0.wav",
    "./0.wav",
    "../sounds/0.wav",
    "sub//../0.wav",
    "link.wav",
    "linked/0.wav",
    "{sounds}/0.wav",
]


@pytest.fixture
def linked(sounds: Path) -> Path:
    (sounds / "link.wav").symlink_to("0.wav")
    (sounds / "linked").symlink_to(sounds)
    return sounds


@pytest.mark.parametrize("name", NAMES_OF_ONE_FILE[1:])
def test_audio_file_in_two_splits_of_a_table_stays_only_in_the_held_out_split(
    linked: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    name = name.format(sounds=linked)
    for first, second, kept in (("train", "test", 1), ("test", "val", 0), ("val", "development", 0)):
        text = f"file,caption,part\n0.wav,A dog,{first}\n{name},A cat,{second}\n"
        assert table(linked, capsys, text, "--caption", "caption", "--split-column", "part")[0] == 0
        (clip,) = read_manifest(linked.parent / "m.jsonl")
        assert (clip.split, clip.captions) == ((first, second)[kept], [("A dog", "A cat")[kept]])
        assert (
            f"the audio file 0.wav is listed by several names, in the splits {first} and {second}; only its rows in"
            in caplog.text
        )
    text = f"file,caption,part\n0.wav,A dog,test\n{name},A cat,evaluation\n"
    status, output = table(linked, capsys, text, "--caption", "caption", "--split-column", "part")
    assert (status, "0.wav, listed by several paths, is in the splits test and" in output) == (1, True), output


def test_table_rows_with_different_paths_of_one_file_become_one_clip(
    linked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{name.format(sounds=linked)},Caption {number}\n" for number, name in enumerate(NAMES_OF_ONE_FILE)]
    assert table(linked, capsys, "file,caption\n" + "".join(rows), "--caption", "caption")[0] == 0
    (clip,) = read_manifest(linked.parent / "m.jsonl")
    assert (clip.file_name, len(clip.captions)) == ("0.wav", len(NAMES_OF_ONE_FILE))


@pytest.mark.parametrize(
    ("name", "present", "difference"),
    [
        ("0", "0.wav", "its ending"),
        ("0.flac", "0.wav", "its ending"),
        ("sub\\2.wav", "sub/2.wav", "the separator of folders"),
        ("data\\0.wav", "0.wav", "a folder in front, with Windows' separators"),
        ("C:\\me\\0.wav", "0.wav", "a folder in front, with Windows' separators, as on another machine"),
        ("/home/me/0.wav", "0.wav", "a folder in front, as on another machine"),
        ("0.WAV", "0.wav", "letter case"),
        ("/home/me/0.FLAC", "0.wav", "more than one way"),
    ],
)
def test_similar_file_names_are_suggested(
    sounds: Path, capsys: pytest.CaptureFixture[str], name: str, present: str, difference: str
) -> None:
    note = (
        f"1 missing file may be present under a similar name: {present!r} instead of {name!r} "
        f"(the names differ in {difference})"
    )
    status, output = table(sounds, capsys, f"file,caption\n{name},a\n", "--caption", "caption")
    assert (status, f"{note}; correct the names in the table" in output) == (1, True), output
    status, output = table(sounds, capsys, f"file,caption\n{name},a\n1.wav,b\n", "--caption", "caption")
    assert (status, f"1 without readable audio (`check` names them); {note}" in output) == (0, True), output


def test_manifest_line_needs_only_id_path_and_captions(sounds: Path) -> None:
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
