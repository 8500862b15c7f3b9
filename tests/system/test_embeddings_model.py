"""Embeddings of another program as a model: scores by hand, forms of files, blind sets, files that do not fit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from outcomes import refused

from data_tools.arrays import read_vectors
from data_tools.errors import KitError
from data_tools.manifest import Clip, write_manifest
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.recipe.load import RecipeError, load_recipe

CLIPS, DIM = 12, 5
SPLITS = ["validation", "evaluation"]


def clips_in(folder: Path) -> list[Clip]:
    """Clips whose audio is not on this machine, in two splits."""
    return [
        Clip(
            id=f"set/{SPLITS[n % 2]}/{n}.wav",
            file_name=f"{n}.wav",
            path=str(folder / f"{n}.wav"),
            captions=[f"sound {n}", f"noise {n}, far away"],
            source="set",
            split=SPLITS[n % 2],  # type: ignore[arg-type]
        )
        for n in range(CLIPS)
    ]


def vectors(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (count, DIM)).astype(np.float32)


def write_table(path: Path, names: list[str], values: np.ndarray, column: str) -> Path:
    """Write embeddings by name."""
    np.savez(path, **{column: names, "embedding": values})
    return path


@pytest.fixture
def folder(tmp_path):
    """A manifest, embeddings of its clips and captions, a blind set, and a recipe."""
    clips = clips_in(tmp_path)
    write_manifest(tmp_path / "m.jsonl", clips)
    write_manifest(tmp_path / "blind.jsonl", [replace(clip, captions=[]) for clip in clips[3:8]])
    (tmp_path / "queries.csv").write_text("caption\nsound 4\nsomething else\n")
    write_table(tmp_path / "audio.npz", [clip.id for clip in clips], vectors(1, CLIPS), "id")
    texts = [text for clip in clips for text in clip.captions]
    write_table(tmp_path / "text.npz", texts, vectors(2, len(texts)), "text")
    write_table(tmp_path / "more.npz", ["something else"], vectors(3, 1), "text")
    return tmp_path


def recipe(folder: Path, **model: Any) -> Path:
    """A recipe without training that ranks a split and a blind set."""
    files = {"audio": str(folder / "audio.npz"), "text": [str(folder / "text.npz"), str(folder / "more.npz")]}
    common = {"stage": None, "checkpoint": None, "edition": "custom"}
    blind = {"kind": "blind", "audio": str(folder / "blind.jsonl"), "queries": str(folder / "queries.csv")}
    content = {
        "name": "mine",
        "seed": 1,
        "banks": str(folder / "banks"),
        "data": {split: {"manifest": str(folder / "m.jsonl"), "split": split} for split in SPLITS},
        "model": {"kind": "embeddings", **files} | model,
        "stages": {},
        "rank": {
            "evaluation": {"kind": "checkpoint", "data": "evaluation", "csv": False, **common},
            "blind": {**blind, **common},
        },
    }
    return tiny.write_recipe(folder / "r.yaml", content)


def cosines(texts: np.ndarray, clips: np.ndarray) -> np.ndarray:
    units = [(rows.T / np.sqrt((rows.astype(float) ** 2).sum(1))).T for rows in (texts, clips)]
    return units[0] @ units[1].T


def test_scores_of_given_embeddings_are_their_cosines(folder, capsys):
    path = recipe(folder, model="MGA-CLAP", model_parameters=7)
    assert main(["check", str(path)]) == 0
    plan = capsys.readouterr().out
    assert f"expert embeddings  5-d, one per clip, read from {folder}/audio.npz\n" in plan
    assert plan.endswith("nothing is missing\n")
    assert main(["run", str(path), "--out", str(folder / "run")]) == 0
    printed = capsys.readouterr().out
    assert "\nmodel      without training, 7 parameters, " in printed
    assert "evaluation: 12 queries, 6 clips of evaluation, given embeddings\n" in printed
    tested = range(1, CLIPS, 2)
    rows = [2 * n + i for n in tested for i in range(2)]
    expected = cosines(vectors(2, 2 * CLIPS)[rows], vectors(1, CLIPS)[list(tested)])
    assert read_scores(folder / "run/scores/evaluation.npy").values == pytest.approx(expected, abs=1e-6)
    texts = np.concatenate([vectors(2, 2 * CLIPS)[8:9], vectors(3, 1)])
    blind = read_scores(folder / "run/scores/blind.npy")
    assert blind.values == pytest.approx(cosines(texts, vectors(1, CLIPS)[3:8]), abs=1e-6)
    result = json.loads((folder / "run/result.json").read_text())
    assert result["parameters"] == {"trained": {"text": 0}, "frozen": {"embeddings": 7}, "total": 7}
    assert result["experts"]["embeddings"]["pretrained"] == "MGA-CLAP"
    assert not list(folder.glob("banks/*/")), "nothing is stored a second time"


def test_run_of_given_embeddings_ranks_the_same_from_another_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["run", str(recipe(Path())), "--out", "run"]) == 0
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    names = ["../m.jsonl", "--split", "evaluation", "--out", "r.npy"]
    assert main(["rank", "../run", *names]) == 0
    first, again = (read_scores(Path(name)).values for name in ("../run/scores/evaluation.npy", "r.npy"))
    assert np.array_equal(first, again)


def test_error_names_queries_and_clips_that_the_given_embeddings_lack(folder, capsys):
    run, other = folder / "run", folder / "other.jsonl"
    clips = clips_in(folder)
    assert main(["run", str(recipe(folder)), "--out", str(run)]) == 0
    assert "knows" in refused(capsys, "search", run, folder / "m.jsonl", "a dog")
    write_manifest(other, [clips[0], replace(clips[1], id="x", file_name="y")])
    said = refused(capsys, "rank", run, other, "--out", folder / "r.npy")
    assert "1 relevant clip cannot be ranked, first x (" in said
    write_manifest(folder / "m.jsonl", [clips[0], replace(clips[1], id="x", file_name="y")])
    assert main(["check", str(recipe(folder))]) == 1
    assert "MISTAKE  expert embeddings, data evaluation: " in capsys.readouterr().out
    write_manifest(folder / "m.jsonl", [clips[0], replace(clips[1], captions=["unknown", "noise 1"])])
    assert main(["check", str(recipe(folder))]) == 1
    said = "text.npz and " + str(folder / "more.npz") + ": no embedding of 2 texts, such as 'unknown'"
    assert said in capsys.readouterr().out
    write_manifest(folder / "m.jsonl", [clips[0], replace(clips[1], file_name="0.wav"), *clips[2:]])
    write_table(folder / "audio.npz", [f"{n}.wav" for n in range(CLIPS)], vectors(1, CLIPS), "id")
    assert "validation" in refused(capsys, "run", recipe(folder), "--out", folder / "two clips of one name")


def test_model_of_given_embeddings_refuses_wrong_sizes_training_export_and_changed_files(folder, capsys):
    run = ["run", recipe(folder), "--out", folder / "run"]
    resolved = json.loads(json.dumps(load_recipe(run[1]).recipe.model_dump(mode="json")))
    for part in ("audio", "text"):
        resolved["model"][part]["dim"] = 4
    path = tiny.write_recipe(folder / "wrong.yaml", resolved)
    assert "correct" in refused(capsys, "run", path, "--out", folder / "run")
    resolved["stages"] = {"only": tiny.stage(train={"data": ["validation"], "mix": "size"})}
    with pytest.raises(RecipeError, match="nothing"):
        load_recipe(tiny.write_recipe(folder / "wrong.yaml", resolved))
    for _ in range(2):
        assert main([*map(str, run)]) == 0
    assert "copy" in refused(capsys, "export", folder / "run", "--out", folder / "exported")
    write_table(folder / "more.npz", ["something else"], vectors(4, 1), "text")
    assert "more.npz changed" in refused(capsys, *run)


def test_embeddings_are_read_as_float32_by_the_kind_of_their_row(tmp_path):
    values = vectors(1, 3).astype(np.float16)
    np.savez(
        tmp_path / "a.npz", kind=["clip", "caption", "clip"], id=["x", "y", "z"], text=["y", "x", ""], embedding=values
    )
    clips, captions = (read_vectors([tmp_path / "a.npz"], kind) for kind in ("clip", "caption"))
    assert (clips.dim, clips.rows_of("x")) == (DIM, 1)
    assert np.array_equal(clips.read("z"), values[2:].astype(np.float32))
    assert np.array_equal(captions.read("x"), values[1:2].astype(np.float32))
    assert "y" not in clips
    assert "y" not in captions
    path = write_table(tmp_path / "b.npz", ["a", "a"], np.ones((2, 3), np.float32), "text")
    assert read_vectors([path], "caption").dim == 3, "equal captions may have equal embeddings"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"id": ["a"], "embedding": [[np.nan]]}, "infinite or NaN"),
        ({"id": ["a"], "embedding": [[1e300]]}, "infinite or NaN"),
        ({"id": ["a", "b"], "embedding": [[1.0]]}, "shorter"),
        ({"id": ["a"], "embedding": [1.0]}, "shape"),
        ({"id": ["a"], "embedding": [["x"]]}, "convert"),
        ({"id": ["a", "a"], "embedding": [[1.0], [2.0]]}, "second"),
        ({"text": ["a"], "embedding": [[1.0]]}, "cannot be read as embeddings"),
        ({"id": ["a"]}, "cannot be read as embeddings"),
        ({"id": ["a"], "kind": ["caption"], "embedding": [[1.0]]}, "no embeddings"),
        (b"", "read"),
        (b"PK", "read"),
        (b"PAR1" + bytes(40), "read"),
        (b"\x93NUMPY", "read"),
    ],
)
def test_embeddings_file_with_invalid_columns_or_no_array_is_refused_with_its_path(tmp_path, columns, expected):
    path = tmp_path / "a.npz"
    path.write_bytes(columns) if isinstance(columns, bytes) else np.savez(path, **columns)
    with pytest.raises(KitError, match=expected) as error:
        read_vectors([path], "clip")
    assert str(error.value).startswith(f"{path}: ")


def test_damaged_embeddings_files_are_refused(tmp_path):
    """Cut, with other bytes within compressed values, or an array by itself."""
    file, array = tmp_path / "e.npz", tmp_path / "e.npy"
    np.savez_compressed(file, kind=["clip"], id=["x"], embedding=np.random.default_rng(0).random((1, 999)))
    whole = file.read_bytes()
    at = whole.index(b"embedding.npy") + 20
    for content in (*(whole[:at] + bytes([n]) * 60 + whole[at + 60 :] for n in (0, 7, 255)), whole[:-9]):
        file.write_bytes(content)
        with pytest.raises(KitError, match="read"):
            read_vectors([file], "clip")
    np.save(array, np.ones((1, 3)))
    with pytest.raises(KitError, match="system/README"):
        read_vectors([array], "clip")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"audio": "gone.npz"}, "model: gone.npz"),
        ({"audio": []}, "model.audio"),
        ({"text": "{folder}/wide.npz"}, "model.audio"),
        ({"text": ["{folder}/text.npz", "{folder}/wide.npz"]}, "one size"),
        ({"audio": "{folder}/r.txt"}, "cannot be read as embeddings"),
        ({"score": {"kind": "cosine"}}, "model.score: "),
    ],
)
def test_recipe_error_names_the_embeddings_file_that_does_not_fit(folder, model, expected):
    write_table(folder / "wide.npz", ["a"], np.ones((1, 2), np.float32), "text")
    (folder / "r.txt").write_text("a\n")
    model = json.loads(json.dumps(model).replace("{folder}", str(folder)))
    with pytest.raises(RecipeError, match="model") as error:
        load_recipe(recipe(folder, **model))
    assert expected in str(error.value)
