"""Truths: captions files, blind sets, and annotations, read or refused with the line."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from data_tools.datasets.nearest import NAME_WAYS, Nearest
from data_tools.errors import DataError
from submission.errors import SubmissionError
from submission.formats.truth import Truth, TruthQuery, read_annotations, read_blind_truth, read_clotho_truth


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "line 1: the file is empty"),
        (b"file_name,caption_1\n", "line 1: no clip follows the header"),
        (b"caption,file_name_1\nx,y\n", "line 1: the header must be file_name,caption_1.*found 'caption,file_name_1'"),
        (b"file_name\nx\n", "line 1: the header must be"),
        (b"file_name,caption_1,caption_3\nx,y,z\n", "line 1: the header must be"),
        (b"\xef\xbb\xbffile_name,caption_1\nx,y\n", "line 1: .*byte order mark"),
        (b"file_name,caption_1\nx,y\nz\n", "line 3: found 1 of 2 columns"),
        (b"file_name,caption_1\nx,y\n\nz,w\n", "line 3: found 0 of 2 columns"),
        (b"file_name,caption_1\nx,y\nz, \n", "line 3: caption_1 is empty"),
        (b"file_name,caption_1\nx,y\n,w\n", "line 3: file_name is empty"),
        (b"file_name,caption_1\nx,y\n\xe9,w\n", "line 3: the row is not UTF-8"),
        (b"file_name,caption_1\nx,y\nx,w\n", "line 3: file name 'x' is already on line 2"),
        (b"file_name,caption_1\nx,y\nz,w\nv,y\n", r"1 query .* ambiguous \(lines 2 and 4; the first is 'y'\)"),
        (b'file_name,caption_1\na,"Stop\nb,A dog\nc,go"\n', "line 2: a cell extends to line 4"),
    ],
)
def test_invalid_captions_file_is_refused_with_its_line(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "truth.csv").write_bytes(data)
    with pytest.raises(SubmissionError, match=rf"truth\.csv: .*{words}"):
        read_clotho_truth(tmp_path / "truth.csv")


def test_caption_repeated_in_one_row_of_the_truth_is_one_query(tmp_path: Path) -> None:
    (tmp_path / "truth.csv").write_bytes(b"file_name,caption_1,caption_2\nx,y,y\n z ,w,v\n")
    truth = read_clotho_truth(tmp_path / "truth.csv")
    assert {text: query.relevant for text, query in truth.queries.items()} == {"y": {"x"}, "w": {" z "}, "v": {" z "}}
    assert truth.file_names == {"x", " z "}


@pytest.mark.parametrize("split", ["validation", "evaluation"])
def test_captions_file_of_clotho_is_read_as_truth(clotho: Callable[[str], Path], split: str) -> None:
    truth = read_clotho_truth(clotho(split))
    assert (len(truth.queries), len(truth.file_names)) == (5225, 1045)


def test_clotho_development_with_shared_captions_is_refused(clotho: Callable[[str], Path]) -> None:
    words = "make 16 queries of a ranked CSV ambiguous.*13 and 2890; 36 and 1284 and 1766; .*score the score matrix"
    with pytest.raises(SubmissionError, match=words):
        read_clotho_truth(clotho("development"))


# --- blind sets -------------------------------------------------------------------------------------------------


@pytest.fixture
def blind(tmp_path: Path) -> tuple[Path, Path]:
    """Queries in a file with other columns, without file names; and a folder that also has files other than audio."""
    queries, audio = tmp_path / "retrieval_captions.csv", tmp_path / "test"
    queries.write_bytes(b'id,caption\n1,"Rain, then ""wind"" "\n2,A bus\n')
    (audio / "sub.wav").mkdir(parents=True)
    for name in ("raindrops on metal_police background.wav", " b .WAV", "c.flac", "._c.flac", "notes.txt"):
        (audio / name).touch()
    return queries, audio


def test_truth_of_a_blind_set_consists_of_query_texts_and_names_of_existing_audio_files(
    blind: tuple[Path, Path],
) -> None:
    truth = read_blind_truth(*blind)
    assert {text: query.relevant for text, query in truth.queries.items()} == {
        'Rain, then "wind" ': None,
        "A bus": None,
    }
    assert [query.where for query in truth.queries.values()] == [
        "line 2 of retrieval_captions.csv", "line 3 of retrieval_captions.csv",
    ]  # fmt: skip
    assert truth.file_names == {"raindrops on metal_police background.wav", " b .WAV", "c.flac"}


@pytest.mark.parametrize(
    ("metadata", "disk"),
    [
        ("raindrops on metal: police background.wav", "raindrops on metal_police background.wav"),
        ("Intersection Wet : Metro Pass.wav", "Intersection Wet_Metro Pass.wav"),
        ("Kitchen Roomtone w: Dripping Faucet_1-2.wav", "Kitchen Roomtone w_Dripping Faucet_1-2.wav"),
    ],
)
def test_file_names_in_metadata_are_matched_to_names_on_disk(
    blind: tuple[Path, Path], metadata: str, disk: str
) -> None:
    (blind[1] / disk).touch()
    assert read_blind_truth(*blind).similar_file_names.to(metadata) == (disk, "punctuation")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "line 1: the file is empty"),
        (b"text\nx\n", "line 1: the header must have one column caption.*found 'text'"),
        (b"caption,caption\nx,y\n", "must have one column caption"),
        (b"caption\n", "line 1: no query follows"),
        (b"caption\nx\n \n", "line 3: caption is empty"),
        (b"caption\nx\ny\nx\n", "line 4: query 'x' is already on line 2"),
        (b"caption,id\nx,1\ny\n", "line 3: found 1 of 2 columns"),
        (b"caption;id\nx;1\n", "line 1: columns are separated by semicolons"),
        (b'caption\nx\n"Stop\nA dog\ngo"\n', "line 3: a cell extends to line 5"),
    ],
)
def test_invalid_blind_queries_are_refused(blind: tuple[Path, Path], data: bytes, words: str) -> None:
    blind[0].write_bytes(data)
    with pytest.raises(SubmissionError, match=words):
        read_blind_truth(*blind)


def test_blind_folder_without_audio_is_refused(blind: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SubmissionError, match=r"this folder has no audio file; give the folder"):
        read_blind_truth(blind[0], tmp_path / "empty")
    with pytest.raises(DataError, match="is a file; name a folder"):
        read_blind_truth(blind[0], blind[0])


def test_blind_audio_with_a_file_name_that_is_not_utf8_is_refused(blind: tuple[Path, Path]) -> None:
    (blind[1] / os.fsdecode(b"caf\xe9.wav")).touch()
    with pytest.raises(DataError, match="archive"):
        read_blind_truth(*blind)


# --- annotations ------------------------------------------------------------------------------------------------


def test_published_2025_annotations_are_read(shared: Path, clotho: Callable[[str], Path]) -> None:
    pool = read_clotho_truth(clotho("evaluation"))
    annotated = read_annotations(shared / "data/dcase2025/metadata_eval.csv", pool)
    sizes = [len(query.relevant or ()) for query in annotated.queries.values()]
    assert (len(sizes), min(sizes), max(sizes), round(sum(sizes) / len(sizes), 3)) == (1037, 1, 12, 3.005)
    own = [
        (pool.queries[text].relevant or set()) <= (query.relevant or set()) for text, query in annotated.queries.items()
    ]
    assert own.count(False) == 46
    assert annotated.file_names == pool.file_names
    assert annotated.queries["A UFO sound is being made from a video game."].relevant == {
        "SYnth_NoisesAX8.wav", "Reel-to-Reel Tape On Fast Forward.wav",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "line 1: the file is empty"),
        (b"query,names\n", "line 1: the header must be query,audio_filenames"),
        (b"query,audio_filenames\n", "line 1: no query follows"),
        (b"query,audio_filenames\nx\n", "line 2: found 1 of 2 columns"),
        (b"query,audio_filenames\nq,['a.wav']\n\n", "line 3: found 0 of 2 columns"),
        (b"query,audio_filenames\nQ ,['a.wav']\n", "line 2: unknown query 'Q '; the most similar known one is 'q'"),
        (b"query,audio_filenames\nq,['a.wav']\nq,['a.wav']\n", "line 3: query 'q' is already on line 2"),
        (b"query,audio_filenames\nq,[]\n", r"line 2: audio_filenames must be a Python list of one or more"),
        (b"query,audio_filenames\nq,a.wav\n", "line 2: audio_filenames must be a Python list"),
        (b"query,audio_filenames\nq,\n", "line 2: audio_filenames must be"),
        (b"query,audio_filenames\nq,('a.wav')\n", "line 2: audio_filenames must be"),
        (b"query,audio_filenames\nq,[b'a.wav']\n", "line 2: audio_filenames must be"),
        (b"query,audio_filenames\nq,\"[1, 'a.wav']\"\n", "line 2: audio_filenames must be"),
        (b"query,audio_filenames\nq,['\\d']\n", "line 2: audio_filenames must be"),
        (b"query,audio_filenames\nq,['a.wav'\n", "line 2: audio_filenames must be"),
        (b"query,audio_filenames\nq,[open('x')]\n", "line 2: audio_filenames must be"),
        (b"query,audio_filenames\nq," + b"[" * 100_000 + b"\n", "line 2: audio_filenames must be"),
        (b"query,audio_filenames\nq," + b"-" * 100_000 + b"1\n", "line 2: audio_filenames must be"),
        (b"query,audio_filenames\nq,\"['a.wav', 'a.wav']\"\n", "line 2: the file 'a.wav' is listed twice"),
        (
            b"query,audio_filenames\nq,['A.wav']\n",
            "line 2: unknown file name 'A.wav'; the most similar known one is 'a.wav', which",
        ),
        (b"query,audio_filenames\nq,\"['a.wav' 'b.wav']\"\n", "line 2: unknown file name 'a.wavb.wav'"),
    ],
)
def test_invalid_annotations_are_refused_with_their_line(tmp_path: Path, data: bytes, words: str) -> None:
    pool = Truth({"q": TruthQuery("", frozenset(["b.wav"]))}, frozenset(["a.wav", "b.wav"]))
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(SubmissionError, match=rf"a\.csv: .*{words}"):
        read_annotations(tmp_path / "a.csv", pool)


# --- names that nearly are one ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "known", "how"),
    [
        (" rain.wav ", "rain.wav", "blanks"),
        ("Chris' Elevator.wav", "Chris&#39; Elevator.wav", "HTML entities"),
        ("Fa\u0300brica.wav", "Fàbrica.wav", "its Unicode form"),
        ("rain.WAV", "rain.wav", "letter case"),
        ("audio/rain.wav", "rain.wav", "a folder in front"),
        ("C:\\audio\\rain.wav", "rain.wav", "a folder in front"),
        ("FÃ\xa0brica.wav", "Fàbrica.wav", "the encoding"),
        ("rain", "rain.wav", "its ending"),
        ("rain.flac", "rain.wav", "its ending"),
        ("thunder storm.wav", "thunder_storm.wav", "punctuation"),
        ("./audio/Rain.WAV", "rain.wav", "more than one way"),
        ("thunder_strm.wav", "thunder_storm.wav", "a letter"),
        ("thunder_stoorm.wav", "thunder_storm.wav", "a letter"),
        ("thunder_storn.wav", "thunder_storm.wav", "a letter"),
        ("thunder_sotrm.wav", "thunder_storm.wav", "a letter"),
        ("Fountain.wav", "Fountain .wav", "blanks"),
        ("FOUNTAIN.wav", "fountain.wav", "letter case"),
    ],
)
def test_most_similar_known_name_is_suggested_with_its_difference(text: str, known: str, how: str) -> None:
    names = [
        "rain.wav", "Chris&#39; Elevator.wav", "Fàbrica.wav", "thunder_storm.wav", "fountain.wav", "Fountain .wav",
        "clip01.wav", "clip02.wav", "a.wav", "...wav", "abcdef.wav", "abcxdefg.wav",
    ]  # fmt: skip
    nearest = Nearest(names, NAME_WAYS)
    assert nearest.to(text) == (known, how)
    # Far from all; a letter from two of them; too short to guess; no letter at all.
    assert [nearest.to(far) for far in ("wind.wav", "clip03.wav", "abcxdef.wav", "b.wav", "")] == [None] * 5


def test_fifty_thousand_unknown_names_are_looked_up_quickly() -> None:
    nearest = Nearest([f"clip {number:05d}.wav" for number in range(5_000)], NAME_WAYS)
    for number in range(50_000):
        assert nearest.to(f"{number} nobody.wav") is None
