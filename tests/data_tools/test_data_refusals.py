"""Mistakes with data: one line that names the file or key, exit status 1, and nothing written."""

import os
import subprocess
import sys

import pytest
from desk import desk, original, refusal  # noqa: F401  fixtures

DATA = [
    # a path that names nothing, a folder for a file, a file for a folder, another file than is meant
    ("check nowhere.jsonl", "nowhere.jsonl"),
    ("check clotho", "folder"),
    ("check captions.csv", "manifest"),
    ("check recipe.yaml", "manifest"),
    ("table audio --audio file_name --caption caption_1 --out x.jsonl", "folder"),
    ("clotho nowhere --out x.jsonl", "nowhere"),
    ("clotho captions.csv --out x.jsonl", "captions.csv"),
    ("clotho audio --out x.jsonl", "clotho_captions_development.csv"),
    ("clotho clotho --out x.jsonl", "clotho_captions_validation.csv"),
    ("audiocaps clotho --out x.jsonl", "train.csv"),
    ("wavcaps captions.csv --audio audio --out x.jsonl", "captions.csv"),
    ("wavcaps manifest.jsonl --audio audio --out x.jsonl", "manifest.jsonl"),
    ("wavcaps scores.json --audio audio --out x.jsonl", "WavCaps"),
    ("blind empty --out x.jsonl", "audio"),
    ("scenes manifest.jsonl --seed 1", "manifest.jsonl"),
    ("scenes notes --seed 1", "notes"),
    ("status nowhere.sqlite", "nowhere.sqlite"),
    ("status recipe.yaml", "store"),
    ("status empty.csv", "store"),
    ("classify recipe.yaml --captions captions.csv --out x", "store"),
    ("classify captions.csv --captions captions.csv --out x", "store"),
    # columns, keys, values, splits
    ("table captions.csv --audio file --caption caption_1 --out x.jsonl", "column"),
    ("table captions.csv --audio file_name --caption caption --out x.jsonl", "column"),
    ("table captions.csv --audio file_name --caption caption_1 --folder nowhere --out x.jsonl", "--folder"),
    ("check broken/no_id.jsonl", "id"),
    ("check broken/number.jsonl", "line 1"),
    ("check broken/typo.jsonl", "capshun"),
    ("check broken/split.jsonl", "split"),
    ("check broken/captions.jsonl", "captions"),
    # --out
    ("clotho clotho --splits development --out x.txt", "jsonl"),
    ("blind audio --out x.csv", "jsonl"),
    # Freesound
    ("crawl store.sqlite", "key"),
    ("fetch store.sqlite --scores captions.csv --exclude none --out x", "key"),
]


@pytest.mark.parametrize(("line", "word"), DATA, ids=[line for line, _ in DATA])
@pytest.mark.usefixtures("desk")
def test_mistake_is_refused_in_one_line_and_nothing_is_written(line, word, capsys):
    assert word in refusal("data_tools", line, capsys)


@pytest.mark.usefixtures("desk")
def test_full_disk_ends_a_verb_in_one_line_and_leaves_nothing(desk, root):  # noqa: F811
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
