"""Damaged files for every reader: an error message or a valid file, never a traceback, and quickly.

Each reader gets copies of a good file with a few bytes, lines, numbers or brackets changed. 200 a reader with the slow
tests, with a fixed seed, so that results depend only on the code; 2,000 with a new seed in the long form:
`-m campaign`. The seed is printed; LBAR_SEED sets it.
"""

import json
import os
import random
import re
import shutil
import signal
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import augmented
import numpy as np
import pytest
import soundfile
import tiny
import torch
import yaml
from outcomes import without_checksums
from ranked import E2022, small_matrix, write_truth
from recorded_run import about

from data_tools.audio import read_audio
from data_tools.datasets.audiocaps import read_audiocaps
from data_tools.datasets.clotho import read_clotho
from data_tools.datasets.wavcaps import read_wavcaps
from data_tools.errors import DataError, KitError
from data_tools.leakage.exclusion import read_exclusions
from data_tools.manifest import read_manifest, read_queries
from submission.editions import EDITIONS
from submission.errors import SubmissionError
from submission.formats.csv_files import check_csv, write_csv
from submission.formats.score_matrix import read_scores, write_scores
from submission.formats.truth import read_captions
from submission.package.about import read_about
from submission.package.archive import check_archive
from submission.runs.entry import open_entry
from submission.runs.files import read_clips
from system.__main__ import main
from system.batches.augment_files import read_alternatives, read_merged, read_synonyms
from system.experiments.study import load_study
from system.features.bank import open_bank
from system.features.contents import ContentKeys
from system.models.text.vector_file import WordVectorFile, write_word_vectors
from system.recipe.load import load_recipe
from system.runs import checkpoints
from system.runs.folder import Run
from system.runs.open import _read_model_json

SEED = os.environ.get("LBAR_SEED")
SENTENCES = (KitError, DataError, SubmissionError)
LONGEST = 20  # seconds of one reading
PIECES = [
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b'"', b"'", b",", b":", b"\n", b"\n\n", b"[", b"{", b"]", b"}", b"&a ",
    b"*a", b"- ", b"null", b"true", b"NaN", b"-1", b"0", b"1e999", b"9" * 5000, b"[" * 2000, b'{"a":' * 2000,
    "²".encode(), "٣".encode(), b"\\ud800", b"../../x", b"/dev/null", b"\xf0\x9f\x94\x8a",
]  # fmt: skip

Reader = tuple[Path, Callable[[], Any]]  # the file that is damaged, and its reader


def mutated(data: bytes, dice: random.Random) -> bytes:
    """One to three changes of a file."""
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(data) + 1)
        end = min(len(data), at + dice.choice([1, 2, 8, 64, 1000]))
        lines = data.split(b"\n")
        numbers = list(re.finditer(rb"-?\d+(?:\.\d+)?", data))
        what = dice.randrange(9)
        if what == 0 and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]
        elif what == 1:
            data = data[:at] + data[end:]
        elif what == 2:
            data = data[:at]
        elif what == 3:
            data = data[:at] + dice.choice(PIECES) + data[at:]
        elif what == 4:
            data = data[:at] + data[at:end] * dice.choice([2, 50]) + data[end:]
        elif what == 5 and numbers:
            number = dice.choice(numbers)
            value = dice.choice([b"0", b"-1", b"1e9", b"2147483648", b"1" + b"0" * 400, b"0.5", b"NaN", b'"x"', b"[]"])
            data = data[: number.start()] + value + data[number.end() :]
        elif what == 6:
            one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
            lines[one], lines[other] = lines[other], lines[one]
            data = b"\n".join(lines)
        elif what == 7:
            lines.insert(dice.randrange(len(lines)), dice.choice(lines))
            data = b"\n".join(lines)
        else:
            data = data[:at] + dice.randbytes(end - at) + data[end:]
    return data


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attack(name: str, reader: Reader, count: int, seed: int, folder: Path) -> None:
    """Damage the file `count` times. Any end other than a result or an error message fails, and the file is kept."""
    path, read = reader
    good = path.read_bytes()
    dice = random.Random(f"{seed} {name}")
    refused = 0
    for n in range(count):
        data = mutated(good, dice)
        path.write_bytes(data)
        where, sentence = f"{name}, mutation {n}, seed {seed}", None
        try:
            with at_most(LONGEST), warnings.catch_warnings():
                warnings.simplefilter("error", ResourceWarning)
                read()
        except SENTENCES as error:
            sentence = str(error)
        except OSError as error:
            sentence = f"{path}: {error.strerror}"
        except BaseException as error:
            kept = folder.parent / f"{name}.{n}"
            kept.write_bytes(data)
            raise AssertionError(f"{where}: {type(error).__name__} for {kept}") from error
        if sentence is not None:
            refused += 1
            assert 10 < len(sentence) < 100_000, f"{where}: {sentence[:200]}"
    path.write_bytes(good)
    print(f"{name}: {count} mutations, {refused} refused with one error message, seed {seed}")


def _run_files(run: Path) -> dict[str, Reader]:
    model = torch.nn.Linear(3, 2)
    (run / "w").mkdir()
    checkpoints.save_weights(model.state_dict(), run / "w/e0001.safetensors")
    opened, ids = Run(run), read_scores(run / "scores/evaluation.npy").clip_ids
    return {
        "provenance": (opened.provenance, opened.read_provenance),
        "result": (opened.result, opened.read_result),
        "result_for_report": (opened.result, lambda: open_entry(str(run)).provenance),
        "resolved": (run / "resolved.json", lambda: load_recipe(run / "resolved.json")),
        "resolved_for_report": (run / "resolved.json", lambda: open_entry(str(run))),
        "metrics": (opened.metrics, opened.read_metrics),
        "done": (run / "finetune/done.json", lambda: checkpoints.read_done(run / "finetune")),
        "last": (run / "finetune/last.pt", lambda: checkpoints.load_state(run / "finetune")),
        "safetensors": (
            run / "w/e0001.safetensors",
            lambda: checkpoints.load_weights(model, run / "w/e0001.safetensors"),
        ),
        "clips": (
            run / "scores/evaluation.clips.csv",
            lambda: read_clips(run / "scores/evaluation.clips.csv", ids),
        ),
        "scores": (run / "scores/evaluation.npy", lambda: read_scores(run / "scores/evaluation.npy").values.max()),
        "sidecar": (run / "scores/evaluation.json", lambda: read_scores(run / "scores/evaluation.npy")),
    }


def _submission_files(folder: Path) -> dict[str, Reader]:
    e2025, truth = EDITIONS["2025"], write_truth(folder)
    write_scores(folder / "s.npy", small_matrix())
    write_csv(small_matrix(), folder / "ranked.csv", E2022)
    write_csv(small_matrix(), folder / "matrix.csv", e2025)
    (folder / "about.yaml").write_text(yaml.safe_dump(about(4)))
    with zipfile.ZipFile(folder / "p.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a_b_task6b_1/a_b_task6b_1.output.csv", "a_b_task6b_1/a_b_task6b_1.meta.yaml"):
            archive.writestr(f"p/task6b/{name}", "caption,file_name_1\n" * 40)
    ranked = folder / "ranked.csv"
    return {
        "ranked": (ranked, lambda: check_csv(ranked.read_bytes(), E2022, read_captions(truth))),
        "truth": (truth, lambda: read_captions(truth)),
        "matrix": (
            folder / "matrix.csv",
            lambda: check_csv((folder / "matrix.csv").read_bytes(), e2025),
        ),
        "about": (folder / "about.yaml", lambda: read_about(folder / "about.yaml", 4)),
        "zip": (folder / "p.zip", lambda: list(check_archive(folder / "p.zip", E2022))),
    }


def _system_files(folder: Path, world: Path) -> dict[str, Reader]:
    recipe = tiny.write_recipe(folder / "small.yaml", tiny.recipe(world, folder))
    study = folder / "a.study.yaml"
    study.write_text("name: a\nrecipe: small.yaml\nseeds: [1, 2]\ncells: {one: {stages.only.epochs: 3}, two: {}}\n")
    vectors = {word: np.arange(4, dtype=np.float32) + n for n, word in enumerate(["a", "dog", "barks", "é"])}
    write_word_vectors(folder / "v.bin", vectors)
    lines = "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in vectors.items())
    (folder / "v.txt").write_text(f"4 4\n{lines}")
    bank = folder / "bank"
    tiny.store_all(open_bank(bank, 3, "float32", {}), ((str(n), np.full((n + 1, 3), n, np.float32)) for n in range(9)))
    with closing(ContentKeys(folder / "keys")) as keys:
        keys(str(recipe))

    def looked_up(name: str) -> None:
        file = WordVectorFile(folder / name, 4)
        for word in ("dog", "é", "none"):
            file.get(word)

    def remembered() -> None:
        with closing(ContentKeys(folder / "keys")) as keys:
            keys(str(recipe))

    def series() -> None:
        opened = open_bank(bank, 3, "float32", {})
        for key in list(opened.keys()):
            opened.read(key)

    return {
        "recipe": (recipe, lambda: load_recipe(recipe)),
        "study": (study, lambda: load_study(study, [])),
        "vectors_binary": (folder / "v.bin", lambda: looked_up("v.bin")),
        "vectors_text": (folder / "v.txt", lambda: looked_up("v.txt")),
        "bank_index": (bank / "index.jsonl", series),
        "bank_frames": (bank / "frames.bin", series),
        "bank_facts": (bank / "bank.json", series),
        "contents": (folder / "keys/contents.sqlite", remembered),
    }


def _augment_files(folder: Path) -> dict[str, Reader]:
    clips = [augmented.clip("a.wav", "a dog", "dogs"), augmented.clip("b.wav", "rain")]
    rows = [("a.wav", 1, "some dogs"), ("b.wav", 0, "it rains")]
    pairs = [("a.wav", "b.wav", "a dog in rain"), ("b.wav", "a.wav", "rain on dogs")]
    alternatives = augmented.table(folder / "alternatives.jsonl", augmented.ALTERNATIVES, *rows)
    merged = augmented.table(folder / "merged.csv", ("clip", "other", "caption"), *pairs)
    synonyms = augmented.table(folder / "synonyms.csv", ("word", "synonym"), ("dog", "hound"), ("rain", "a drizzle"))
    return {
        "alternatives": (alternatives, lambda: read_alternatives(alternatives, clips)),
        "merged": (merged, lambda: read_merged(merged, clips)),
        "synonyms": (synonyms, lambda: read_synonyms(synonyms, {"dog", "rain"})),
    }


def _data_files(folder: Path, world: Path) -> dict[str, Reader]:
    manifest = shutil.copy(world, folder / "manifest.jsonl")
    queries = [{"id": "1", "text": "a dog", "relevant": ["c"]}, {"id": "2", "text": "b", "relevant": None}]
    (folder / "q.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    (folder / "q.csv").write_text('file_name,caption_1,caption_2\na.wav,"a dog, barking",a cat\nb.wav,rain,wind\n')
    (folder / "ids.csv").write_text("sound_id\n123\n456\nNot found\n")
    (folder / "ids.json").write_text(json.dumps({"FreeSound": ["123", "456", 7]}))
    items = [{"id": str(n), "caption": "a dog", "audio": f"{n}.wav", "duration": 1.0} for n in (1, 2, 3)]
    (folder / "wavcaps.json").write_text(json.dumps({"num_captions_per_audio": 1, "data": items}))
    clotho, caps = folder / "clotho", folder / "caps"
    for made in (clotho / "development", caps):
        made.mkdir(parents=True)
    captions = clotho / "clotho_captions_development.csv"
    header = "file_name," + ",".join(f"caption_{n}" for n in range(1, 6))
    captions.write_text(header + "\n" + "a.wav,one,two,three,four,five\nb.wav,one,two,three,four,five\n")
    (caps / "train.csv").write_text("audiocap_id,youtube_id,start_time,caption\n1,abc,30,a dog\n2,def,0,rain\n")
    for name in ("a.wav", "b.wav"):
        soundfile.write(clotho / "development" / name, np.zeros(800), 8_000)
    tone = (0.1 * np.sin(np.arange(16_000) / 20)).astype(np.float32)
    for name in ("t.wav", "t.flac", "t.ogg", "t.mp3", "t.aiff"):
        soundfile.write(folder / name, tone, 16_000)
    found: dict[str, Reader] = {
        "manifest": (manifest, lambda: read_manifest(manifest)),
        "queries_jsonl": (folder / "q.jsonl", lambda: read_queries(folder / "q.jsonl")),
        "queries_csv": (folder / "q.csv", lambda: read_queries(folder / "q.csv")),
        "exclusion_csv": (folder / "ids.csv", lambda: read_exclusions([folder / "ids.csv"])),
        "exclusion_json": (folder / "ids.json", lambda: read_exclusions([folder / "ids.json"])),
        "wavcaps": (folder / "wavcaps.json", lambda: read_wavcaps(folder / "wavcaps.json", folder, "x", True)),
        "clotho": (captions, lambda: read_clotho(clotho, ["development"])),
        "audiocaps": (caps / "train.csv", lambda: read_audiocaps(caps, caps, ["train"], keep_missing=True)),
    }
    found |= _augment_files(folder)
    for name in ("t.wav", "t.flac", "t.ogg", "t.mp3", "t.aiff"):
        found[name] = (folder / name, lambda path=folder / name: read_audio(path, 8_000))  # type: ignore[misc]
    return found


@pytest.fixture
def readers(unbroken: Path, world: Path, tmp_path: Path) -> dict[str, Reader]:
    run = shutil.copytree(unbroken, tmp_path / "run")
    assert main(["export", str(run), "--out", str(tmp_path / "model")]) == 0
    without_checksums(run)  # files are read although their checksum is wrong
    without_checksums(tmp_path / "model")
    folder = tmp_path / "files"
    folder.mkdir()
    return {
        **_run_files(run),
        **_submission_files(folder),
        **_system_files(folder, world),
        **_data_files(folder, world),
        "model": (tmp_path / "model/model.json", lambda: _read_model_json(tmp_path / "model")),
    }


@pytest.mark.parametrize(
    "count",
    [pytest.param(200, marks=pytest.mark.slow), pytest.param(2000, marks=pytest.mark.campaign)],
)
def test_randomly_damaged_input_files_never_cause_a_traceback(
    readers: dict[str, Reader], tmp_path: Path, count: int
) -> None:
    seed = int(SEED) if SEED else 2022 if count == 200 else random.SystemRandom().randrange(2**32)
    failed = []
    for name, reader in readers.items():
        good = reader[0].read_bytes()
        reader[1]()  # unchanged, it is readable
        try:
            attack(name, reader, count, seed, tmp_path)
        except AssertionError as error:
            failed.append(f"{error} ({error.__cause__!r})")
        reader[0].write_bytes(good)
    assert not failed, "\n".join(failed)
