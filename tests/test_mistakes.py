"""Mistakes of participants with data and submissions: one line that names the file or key, and nothing written.

A row is a command in the folder that desk.py makes, and a word of the message. Those of `system`: system/test_refusals.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from desk import desk, original, refusal  # noqa: F401  fixtures

DATA = [
    # a path that names nothing, a folder for a file, a file for a folder, another file than is meant
    ("check nowhere.jsonl", "nowhere.jsonl"),
    ("check clotho", "folder"),
    ("check captions.csv", "manifest"),
    ("check recipe.yaml", "manifest"),
    ("table audio --audio file_name --caption caption_1 --out x.jsonl", "folder"),
    ("queries empty.csv --out x.jsonl", "empty"),
    ("clotho nowhere --out x.jsonl", "nowhere"),
    ("clotho captions.csv --out x.jsonl", "captions.csv"),
    ("clotho audio --out x.jsonl", "clotho_captions_development.csv"),
    ("clotho clotho --out x.jsonl", "clotho_captions_validation.csv"),
    ("audiocaps clotho --out x.jsonl", "train.csv"),
    ("wavcaps captions.csv --audio audio --out x.jsonl", "JSON"),
    ("wavcaps manifest.jsonl --audio audio --out x.jsonl", "JSON"),
    ("wavcaps scores.json --audio audio --out x.jsonl", "WavCaps"),
    ("blind empty --out x.jsonl", "audio"),
    ("scenes manifest.jsonl --seed 1", "manifest.jsonl"),
    ("scenes notes --seed 1", "notes"),
    ("status nowhere.sqlite", "nowhere.sqlite"),
    ("status recipe.yaml", "store"),
    ("status empty.csv", "store"),
    ("classify recipe.yaml --captions captions.csv --out x", "store"),
    ("classify captions.csv --captions captions.csv --out x", "column"),
    # columns, keys, values, splits
    ("table captions.csv --audio file --caption caption_1 --out x.jsonl", "column"),
    ("table captions.csv --audio file_name --caption caption --out x.jsonl", "column"),
    ("table captions.csv --audio file_name --caption caption_1 --folder nowhere --out x.jsonl", "24"),
    ("check broken/no_id.jsonl", "id"),
    ("check broken/number.jsonl", "line 1"),
    ("check broken/typo.jsonl", "capshun"),
    ("check broken/split.jsonl", "split"),
    ("check broken/captions.jsonl", "captions"),
    ("queries manifest.jsonl --split train --out x.jsonl", "train"),
    ("queries manifest.jsonl --split dev --out x.jsonl", "dev"),
    # --out
    ("clotho clotho --keep-missing --splits development --out x.txt", "jsonl"),
    ("blind audio --out x.csv", "jsonl"),
    ("queries blind.csv --out blind.csv", "jsonl"),
    ("queries manifest.jsonl --out manifest.jsonl", "overwrite"),
    # Freesound
    ("crawl store.sqlite", "key"),
    ("fetch store.sqlite --scores captions.csv --exclude none --out x", "key"),
]
SUBMISSION = [
    ("score nowhere.csv --truth captions.csv", "nowhere.csv"),
    ("score empty", "run"),
    ("score run:odd", "odd"),
    ("score run --truth captions.csv", "truth"),
    ("score ranked.csv", "truth"),
    ("score ranked.csv --truth audio", "folder"),
    ("score ranked.csv --truth other.csv", "query"),
    ("score ranked.csv --truth manifest.jsonl", "CSV"),
    ("score ranked.csv --truth blind.csv", "header"),
    ("score captions.csv --truth ranked.csv", "header"),
    ("score old.npy", "old.json"),
    ("score recipe.yaml --truth captions.csv", "YAML"),
    ("score 2024.csv --truth captions.csv --edition 2022", "2024"),
    ("check run", "folder"),
    ("check recipe.yaml", "YAML"),
    ("check ranked.csv --queries blind.csv", "audio"),
    ("check ranked.csv --queries blind.csv --audio nowhere", "nowhere"),
    ("check ranked.csv --edition 2022 --truth other.csv", "query"),
    ("check ranked.csv --edition 2024", "2022"),
    ("check 2024.csv", "edition"),
    ("check 2024.csv --edition 2022", "2024"),
    ("check 2024.csv --edition 2025", "score"),
    ("check 2024.csv --edition 24", "24"),
    ("report recipe.yaml --out x.html", "recipe.yaml"),
    ("report audio", "run"),
    ("report run --out x.pdf", "html"),
    ("report run:nothing --out x.html", "nothing"),
    ("pack nowhere --about about.yaml --out x.zip", "nowhere"),
    ("pack run --about nowhere.yaml --out x.zip", "template"),
    ("pack run --about recipe.yaml --out x.zip", "authors"),
    ("pack run --out x.zip", "about"),
    ("pack run --about about.yaml --out x.tar", "zip"),
    ("pack run --template notes/old.txt", "exists"),
    ("write scores.npy --out 2024.csv", "2024.csv"),
    ("write scores.npy --out x.txt", "csv"),
    ("write scores.npy --out nowhere/x.csv", "nowhere"),
    ("blend scores.npy --out x.npy", "two"),
    ("blend scores.npy run/scores/evaluation.npy --out scores.npy", "overwrite"),
]
ROWS = [
    pytest.param(floor, line, word, id=f"{floor} {line}")
    for floor, rows in (("data_tools", DATA), ("submission", SUBMISSION))
    for line, word in rows
]


@pytest.mark.parametrize(("floor", "line", "word"), ROWS)
@pytest.mark.usefixtures("desk")
def test_mistake_is_refused_in_one_line_and_nothing_is_written(
    floor: str, line: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert word in refusal(floor, line, capsys)


@pytest.mark.usefixtures("desk")
def test_full_disk_ends_a_verb_in_one_line_and_leaves_nothing(desk: Path, root: Path) -> None:  # noqa: F811
    """A file may have 100 bytes; longer ones fail as on a full disk."""
    code = (
        "import resource, sys; from submission.__main__ import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "write", "scores.npy", "--out", "notes/x.csv"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=desk, env=os.environ | {"PYTHONPATH": str(root)})
    assert done.returncode == 1
    assert done.stderr.startswith("error: notes/x.csv")
    assert done.stderr.count("\n") == 1
