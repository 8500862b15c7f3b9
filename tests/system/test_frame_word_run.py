"""Frame-word models on the command line: run, export, rank, report, and refused settings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from outcomes import lines, ranked_evaluation, refused

from data_tools.errors import KitError
from data_tools.manifest import read_manifest
from data_tools.words import vocabulary_of
from submission.__main__ import main as submission
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.models.text.words import write_word_vectors
from system.retriever import load_model
from system.serve.server import Search


def content(world: Path, folder: Path) -> dict[str, Any]:
    """A tiny recipe with a GRU over log-mel frames, word vectors, and a stage that ends early."""
    stage = tiny.stage(
        unit="pair",
        captions_per_clip=None,
        epochs=9,
        losses=[{"kind": "ranking", "weight": 1, "margin": 0.5, "relax": "none", "negatives": "semi_hard"}],
        schedule={"kind": "plateau", "metric": "loss", "factor": 0.1, "patience": 0, "threshold": 9, "min_lr": 1e-5},
        stop={"kind": "std_plateau", "metric": "loss", "epochs": 2, "deviation": 9, "at_least": 3},
    )
    whole = tiny.recipe(world, folder, only=stage)
    audio = whole["model"]["audio"]
    whole["model"] = {
        "audio": {
            "kind": "gru", "experts": audio["experts"], "width": 8, "hidden": 6, "dropout": 0.1, "embedding": "frames"
        },
        "text": {
            "kind": "word_vectors", "vectors": str(folder / "words.bin"), "dim": 12, 
            "embedding": "words",
        },
        "score": {"kind": "frame_word"},
    }  # fmt: skip
    return whole


def write_words(path: Path, world: Path, seed: int = 0) -> None:
    words = vocabulary_of(caption for clip in read_manifest(world) for caption in clip.captions)
    rng = np.random.default_rng(seed)
    write_word_vectors(path, {word: rng.normal(size=12) for word in words})


@pytest.fixture(scope="module")
def done(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frame_word")
    write_words(folder / "words.bin", world)
    recipe = tiny.write_recipe(folder / "r.yaml", content(world, folder))
    assert main(["run", str(recipe), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_stage_lowers_the_learning_rate_and_ends_early_when_the_loss_hardly_changes(done):
    assert [line["lr"] for line in lines(done)] == pytest.approx([1e-3, 1e-3, 1e-4])
    assert len(json.loads((done / "only/done.json").read_text())["lines"]) == 3
    assert "ends early" in (done / "log.txt").read_text()
    assert json.loads((done / "result.json").read_text())["parameters"]["frozen"]["text"] > 0


def test_exported_model_that_scores_frames_against_words_ranks_like_its_run(done, world, tmp_path):
    expected = read_scores(done / "scores/evaluation.npy").values
    assert np.ptp(expected) > 0
    assert main(["export", str(done), "--out", str(tmp_path / "model")]) == 0
    assert "--set model.text.vectors=FILE" in (tmp_path / "model/README.md").read_text()
    for model in (done, tmp_path / "model"):
        found = ranked_evaluation(model, world, tmp_path / "s.npy", tmp_path / "banks")
        assert np.allclose(found, expected, atol=1e-6)


def test_ranking_with_other_word_vectors_than_in_training_is_refused(done, world, tmp_path, capsys):
    main(["export", str(done), "--out", str(tmp_path / "model")])
    write_words(tmp_path / "other.bin", world, seed=1)
    capsys.readouterr()
    ask = (world, "--split", "evaluation", "--out", tmp_path / "s.npy")
    other = ("--set", f"model.text.vectors={tmp_path / 'other.bin'}")
    assert "trained" in refused(capsys, "rank", tmp_path / "model", *ask, *other)
    assert "model.text" in refused(capsys, "rank", done, *ask, *other)
    gone = ("--set", f"model.text.vectors={tmp_path / 'gone.bin'}")
    assert "gone.bin" in refused(capsys, "rank", tmp_path / "model", *ask, *gone)


def test_missing_word_vectors_are_reported_before_any_work(world, tmp_path, capsys):
    recipe = tiny.write_recipe(tmp_path / "r.yaml", content(world, tmp_path))
    assert "words.bin" in refused(capsys, "run", recipe, "--out", tmp_path / "run")
    assert not (tmp_path / "banks").exists()
    assert main(["check", str(recipe)]) == 1
    assert "words.bin: published at" in capsys.readouterr().out


def test_search_and_report_accept_models_with_series_of_embeddings(done, world, tmp_path):
    clips = [clip for clip in read_manifest(world) if clip.split == "evaluation"]
    model = load_model(done, cache=tmp_path)
    search, again = (Search(model, model.open(some), Path(__file__)) for some in (clips, clips[::-1]))
    found, other = (one.find(clips[0].captions[0], 3) for one in (search, again))
    assert len(found) == 3
    assert other[0].score == pytest.approx(found[0].score), "equal to the stored score"
    with pytest.raises(KitError, match="zebra"):
        search.find("zebra", 3)
    assert submission(["report", str(done)]) == 0


def test_incompatible_score_and_embedding_settings_are_refused(world, tmp_path, capsys):
    recipe = tiny.write_recipe(tmp_path / "r.yaml", content(world, tmp_path))
    for change, words in (
        ("model.audio.embedding=mean", "score frame_word needs an encoder that returns frames"),
        ("model.text.embedding=mean", "score frame_word needs an encoder that returns words"),
        ('model.score={"kind": "cosine"}', "score cosine needs one embedding, not frames; set embedding: mean"),
        ("model.audio.hidden=7", "the GRU returns 2 x 7 values, but text embeddings have 12; set hidden to 6"),
        ("stages.only.grad_cache_chunk=2", "batch norms or padding need the whole batch"),
        ("stages.only.stop.metric=recall_sum", "recall_sum is not monitored"),
        ("stages.only.schedule.metric=recall_sum", "recall_sum is not monitored"),
    ):
        assert words in refused(capsys, "check", recipe, "--set", change), change
