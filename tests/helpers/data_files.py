"""Small data sets on disk, helpers that run verbs and `check` on them, and words to look for."""

import csv
import struct
from pathlib import Path

import pytest

from data_tools.__main__ import main
from data_tools.scenes.captions import not_held_out, phrasings

COUNTS = {"development": 3839, "validation": 1045, "evaluation": 1045}
PUBLISHED = ["file_name", "keywords", "sound_id", "sound_link", "start_end_samples", "manufacturer", "license"]


def rows(path: Path, encoding: str = "utf-8") -> list[dict[str, str]]:
    with path.open(encoding=encoding, newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, header: list[str], values: list[list[str]], encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(values)


def write_wav(path: Path, content: int) -> None:
    """Ten milliseconds of sound that no other content number has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", 356, b"WAVE", b"fmt ", 16, 1, 1, 16000, 32000, 2, 16, b"data", 320
    )
    path.write_bytes(header + content.to_bytes(240, "little") + 20 * b"\0\x10\0\xf0")


def failure(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """The one line that a failing command prints."""
    capsys.readouterr()
    assert main([str(value) for value in argv]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def publish_clotho(shared: Path, root: Path) -> Path:
    """Clotho v2.1 as published: real tables, metadata in ISO-8859-1, every clip with its own ten milliseconds."""
    content = 0
    for split in COUNTS:
        table = shared / "data" / "clotho" / f"clotho_captions_{split}.csv"
        (root / table.name).write_bytes(table.read_bytes())
        metadata = rows(shared / "data" / "clotho" / f"{split}_audio_metadata.csv")
        # The copy lost one uploader's letter when it was turned into UTF-8.
        values = [[row[column].replace("\ufffd", "Á") for column in PUBLISHED] for row in metadata]
        write_rows(root / f"clotho_metadata_{split}.csv", PUBLISHED, values, "iso-8859-1")
        for row in metadata:
            content += 1
            write_wav(root / split / row["file_name"], content)
    return root


def small_clotho(root: Path, names: list[str], on_disk: list[str], split: str = "development") -> Path:
    captions = [[name, f"sound {number}", f"noise {number}"] for number, name in enumerate(names)]
    write_rows(root / f"clotho_captions_{split}.csv", ["file_name", "caption_1", "caption_2"], captions)
    for number, name in enumerate(on_disk):
        write_wav(root / split / name, number)
    return root


def wordings(name: str, share: float = 0.0) -> list[str]:
    return [text for pair in not_held_out(phrasings(name), share) for text in pair]
