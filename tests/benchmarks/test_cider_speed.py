"""CIDEr-D against pycocoevalcap, in one run: `python -m pytest -m benchmark -s`. Nothing here fails for being slow."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import read_corpus

pytestmark = pytest.mark.benchmark

# In a process of its own, so that its peak memory is that of the whole work: from the files to the percentiles.
_ALL_PAIRS = """
import json, resource, sys, time
from pathlib import Path
from system.losses.cider import Cider, Relevance
sys.path.insert(0, "tests/helpers")
from corpora import read_corpus
began = time.perf_counter()
import system.losses.kernel
relax = [{"percentile": q, "factor": 1} for q in (80, 90, 99)]
settings = Cider(kind="cider", corpus=["c"], tokenizer="regex", relax=relax)
Relevance(settings, [["a dog"], ["a cat"]])
ready = time.perf_counter()
clips = [clip for path in sys.argv[1:] for clip in read_corpus(Path(path))]
read = time.perf_counter()
found = Relevance(settings, clips).percentiles
done = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"compile": ready - began, "all": done - read,
    "n": sum(map(len, clips)) ** 2, "percentiles": found, "peak": peak}))
"""


def all_pairs(root: Path, cache: Path, *paths: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", _ALL_PAIRS, *map(str, paths)]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def official_rate(captions: list[list[str]], pairs: int) -> float:
    """Pairs a second of pycocoevalcap, random ones: counting n-grams and scoring, document frequencies made before."""
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    corpus = CiderScorer()
    for caption in captions:
        corpus += ("", [" ".join(caption)])
    corpus.compute_doc_freq()
    scorer = CiderScorer()
    scorer.document_frequency = corpus.document_frequency
    texts = [" ".join(caption) for caption in captions]
    chosen = np.random.default_rng(0).integers(0, len(captions), (pairs, 2)).tolist()
    began = time.perf_counter()
    for a, b in chosen:
        scorer += (texts[a], [texts[b]])
    scorer.compute_cider()
    return pairs / (time.perf_counter() - began)


def test_speed_of_cider_between_all_pairs_of_captions_is_measured(root, shared, tmp_path):
    from system.losses.cider import regex_tokens

    clotho = [shared / f"data/clotho/clotho_captions_{split}.csv" for split in ("development", "validation")]
    captions = [regex_tokens(caption) for path in clotho for clip in read_corpus(path) for caption in clip]
    official = official_rate(captions, 10_000)
    print(f"\npycocoevalcap: {official:,.0f} pairs/s")
    for name, paths in (("Clotho", clotho), ("AudioCaps", [shared / "data/audiocaps/train.csv"])):
        result = all_pairs(root, tmp_path, *paths)
        whole = result["n"] / result["all"]
        print(
            f"{name}: {result['n']:,} pairs; tokens, features, scores and percentiles {result['all']:.1f} s, "
            f"{whole / official:,.0f} x; first call {result['compile']:.1f} s; peak {result['peak'] / 2**30:.2f} GiB; "
            + " ".join(f"{c:.5f}" for c in result["percentiles"])
        )


def test_speed_of_cider_in_training_batches_is_measured(shared, tmp_path):
    from system.losses.cider import Cider, PercentileFactor, Relevance

    clips = read_corpus(shared / "data/clotho/clotho_captions_development.csv")
    points = [PercentileFactor(percentile=80.0, factor=1.0), PercentileFactor(percentile=99.0, factor=0.4)]
    settings = Cider(kind="cider", corpus=["clotho"], tokenizer="regex", relax=points)
    relevance = Relevance(settings, clips)
    captions = [caption for clip in clips for caption in clip]
    relevance.prepare(captions)
    random = np.random.default_rng(0)
    print()
    for size in (512, 2560):
        batch = [captions[n] for n in random.permutation(len(captions))[:size]]
        taken = []
        for _ in range(9):
            began = time.perf_counter()
            relevance.among(batch).of_items([1] * len(batch))
            taken.append(time.perf_counter() - began)
        print(f"between {size} captions: {sorted(taken)[4] * 1e3:.1f} ms")
    batch = [caption for n in random.permutation(len(clips))[:512] for caption in clips[n]]
    began = time.perf_counter()
    relevance.margin_factor(relevance.among(batch).of_items([5] * 512))
    print(f"relax of 512 clips with 5 captions: {(time.perf_counter() - began) * 1e3:.1f} ms")
