"""A tiny recipe that scores frames against words, and its word vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import tiny

from data_tools.manifest import read_manifest
from data_tools.words import vocabulary_of
from system.models.text.words import write_word_vectors


def content(world: Path, folder: Path) -> dict[str, Any]:
    """A tiny recipe with a GRU over log-mel frames, word vectors, and a stage that ends early."""
    ranking = {"kind": "ranking", "weight": 1, "margin": 0.5, "relax": "none", "negatives": "semi_hard"}
    plateau = {"kind": "plateau", "metric": "loss", "factor": 0.1, "patience": 0, "threshold": 9, "min_lr": 1e-5}
    stop = {"kind": "std_plateau", "metric": "loss", "epochs": 2, "deviation": 9, "at_least": 3}
    settings = {"unit": "pair", "captions_per_clip": None, "epochs": 9, "losses": [ranking]}
    whole = tiny.recipe(world, folder, only=tiny.stage(**settings, schedule=plateau, stop=stop))
    audio = {"kind": "gru", "experts": {"logmel": dict(tiny.LOGMEL)}, "width": 8, "hidden": 6, "dropout": 0.1}
    vectors = str(folder / "words.bin")
    whole["model"] = {
        "audio": audio | {"embedding": "frames"},
        "text": {"kind": "word_vectors", "vectors": vectors, "dim": 12, "embedding": "words"},
        "score": {"kind": "frame_word"},
    }
    return whole


def write_words(path: Path, world: Path, seed: int = 0) -> None:
    words = vocabulary_of(caption for clip in read_manifest(world) for caption in clip.captions)
    rng = np.random.default_rng(seed)
    write_word_vectors(path, {word: rng.normal(size=12) for word in words})
