"""Several processes against one: the same losses, the same weights, the same files."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from several import together
from threads import one_thread  # noqa: F401  a fixture

from data_tools.manifest import read_manifest
from submission.formats.score_matrix import read_scores
from system.__main__ import main
from system.losses.negatives import NEGATIVES
from system.models.text.vector_file import write_word_vectors
from system.words import vocabulary_of

STEPS = 20
RANKING = {"kind": "ranking", "weight": 1, "margin": 0.2, "relax": "none"}
NT_XENT = {"kind": "nt_xent", "weight": 1, "temperature": 0.1}
TRIPLET = {"kind": "weighted_triplet", "weight": 1, "margin": 0.2, "clamp": "each"}
TRIPLET |= {"positive": [0.5, -0.7, 0.2], "negative": [0.03, -0.3, 1.6]}
BANDS = {"kind": "logmel_slaney", "sample_rate": 16_000, "bands": 64, "window_seconds": 0.04, "hop_seconds": 0.02}
BANDS |= {"lowest": 0.0, "highest": 8_000.0}
CRNN = {"kind": "crnn", "experts": {"logmel": BANDS}, "hidden": 12, "dropout": 0.0, "embedding": "mean"}
CRNN |= {"padding": "masked"}
Content = dict[str, Any]


def content(manifest: Path, folder: Path, audio: Mapping[str, Any] | None = None, **stage: Any) -> Content:
    """A recipe of 20 steps without dropout. audio: changes of the encoder."""
    watched = {"data": ["validation"], "metrics": ["loss", "mAP@10"], "keep": 1}
    settings = {"epochs": STEPS // 4, "steps_per_epoch": 4, "batch_size": 7, "monitor": watched} | stage
    made = tiny.recipe(manifest, folder, only=tiny.stage(**settings))
    made["model"]["audio"] |= {"dropout": 0.0, **(audio or {})}
    made["model"]["text"]["dropout"] = 0.0
    made["rank"] = {}
    return made


def terms() -> dict[str, list[Content]]:
    found = {f"ranking_{name}": [RANKING | {"negatives": name}] for name in ("all", *NEGATIVES)}
    found |= {f"reduce_{name}": [RANKING | {"reduce": name}] for name in ("mean", "hinge_of_mean")}
    found |= {f"nt_xent_{name}": [NT_XENT | {"same_clip": name}] for name in ("masked", "negatives", "positives")}
    found["weighted_triplet"] = [TRIPLET]
    return found | {"ranking_and_matching": [RANKING, {"kind": "matching", "weight": 3}]}


def cases(manifest: Path, folder: Path) -> dict[str, Content]:
    """Recipes by name; a batch of 7 leaves parts of 4 and 3, or of 3, 2 and 2."""
    made = {name: content(manifest, folder, losses=losses) for name, losses in terms().items()}
    made["relaxed"] = content(manifest, folder, losses=tiny.RELAXED) | {"relevance": tiny.relevance()}
    made["cached"] = content(manifest, folder, grad_cache_chunk=2)
    made["cached_in_fewer_parts_than_processes"] = content(manifest, folder, grad_cache_chunk=4)
    made["pairs"] = content(manifest, folder, unit="pair", captions_per_clip=None)
    made["all_captions"] = content(manifest, folder, captions_per_clip="all", losses=[NT_XENT])
    made["learned_temperature"] = content(manifest, folder, losses=[NT_XENT | {"temperature": "learned"}])
    made["learned_temperature"]["model"]["learned_temperature"] = 0.2
    made["dropout"] = content(manifest, folder, {"dropout": 0.3}, grad_cache_chunk=1)
    made["dropout"]["model"]["text"]["dropout"] = 0.3
    taught = content(manifest, folder, losses=[NT_XENT])
    learn = {"kind": "distill", "weight": 1, "teachers": ["before"], "temperature": 0.1}
    taught["stages"]["second"] = taught["stages"]["only"] | {"losses": [learn]}
    taught["teachers"] = {"before": {"kind": "stage", "stage": "only", "checkpoint": "last"}}
    made["normed"] = content(manifest, folder, losses=[NT_XENT])
    made["normed"]["model"] |= {"audio": CRNN, "text": made["normed"]["model"]["text"] | {"dim": 24}}
    made["counted"] = content(manifest, folder, losses=[NT_XENT])
    made["counted"]["model"] = made["normed"]["model"] | {"audio": CRNN | {"padding": "counted"}}
    made["frames_and_words"] = content(manifest, folder, unit="pair", captions_per_clip=None)
    made["frames_and_words"]["model"] = frame_word(manifest, folder)
    return made | {"distilled": taught}


def frame_word(manifest: Path, folder: Path) -> Content:
    """A GRU over frames and vectors of words."""
    words = vocabulary_of(caption for clip in read_manifest(manifest) for caption in clip.captions)
    rng = np.random.default_rng(0)
    write_word_vectors(folder / "words.bin", {word: rng.normal(size=12) for word in words})
    logmel = tiny.recipe(manifest, folder)["model"]["audio"]["experts"]
    return {
        "audio": {"kind": "gru", "experts": logmel, "width": 8, "hidden": 6, "dropout": 0.0, "embedding": "frames"},
        "text": {
            "kind": "word_vectors", "vectors": str(folder / "words.bin"), "dim": 12, "unknown": "each",
            "embedding": "words", "padding": "masked",
        },
        "score": {"kind": "frame_word", "reduce": "mean"},
    }  # fmt: skip


def lines(run: Path) -> list[Content]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights(run: Path, stage: str = "only") -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(run / stage / "last.pt", weights_only=True)["model"]
    return found


def assert_alike(one: Path, other: Path, losses: float = 1e-6, values: float = 1e-5) -> None:
    """Training losses to a relative error, final weights to an absolute one.

    Of keys in attention the bias has no gradient but rounding, since a softmax does not see it, and AdamW makes full
    steps of that: it is left out.
    """
    before, after = lines(one), lines(other)
    assert [(a["stage"], a["step"]) for a in after] == [(a["stage"], a["step"]) for a in before]
    for a, b in zip(before, after, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=losses, abs=losses)
        assert b["validation"] == pytest.approx(a["validation"], rel=1e-4)
    for stage in {line["stage"] for line in before}:
        expected, found = weights(one, stage), weights(other, stage)
        for name, value in expected.items():
            difference = (found[name].double() - value.double()).abs()
            if name.endswith("in_proj_bias"):
                queries, _, others = difference.chunk(3)
                difference = torch.cat([queries, others])
            assert difference.numel() == 0 or difference.max() <= values, f"{one.name}: {name}"


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_world(tmp_path_factory.mktemp("several") / "world", tiny.SIZES)


@pytest.mark.usefixtures("one_thread")
def test_two_processes_train_and_rank_as_one(manifest: Path, tmp_path: Path) -> None:
    recipe = content(manifest, tmp_path, epochs=2)
    recipe["rank"] = tiny.recipe(manifest, tmp_path, only={})["rank"]
    path = tiny.write_recipe(tmp_path / "r.yaml", recipe)
    assert main(["run", str(path), "--out", str(tmp_path / "one")]) == 0
    done = together(2, [["run", path, "--out", tmp_path / "two"]], tmp_path)
    assert done.returncode == 0, done.stderr
    assert_alike(tmp_path / "one", tmp_path / "two")
    found, expected = (read_scores(tmp_path / name / "scores" / "evaluation.npy") for name in ("two", "one"))
    assert np.abs(found.values - expected.values).max() < 1e-5
    assert found.query_ids == expected.query_ids
    names = [sorted(path.name for path in (tmp_path / run).rglob("*") if path.is_file()) for run in ("one", "two")]
    assert names[0] == names[1]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.usefixtures("one_thread")
def test_every_term_sees_the_whole_batch(manifest: Path, tmp_path: Path, processes: int) -> None:
    every = cases(manifest, tmp_path)
    paths = {name: tiny.write_recipe(tmp_path / f"{name}.yaml", made) for name, made in every.items()}
    commands = [["train", path, "--out", tmp_path / "several" / name] for name, path in paths.items()]
    done = together(processes, commands, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    for name, path in paths.items():
        assert main(["train", str(path), "--out", str(tmp_path / "one" / name)]) == 0
        assert_alike(tmp_path / "one" / name, tmp_path / "several" / name)
        shutil.rmtree(tmp_path / "several" / name)
