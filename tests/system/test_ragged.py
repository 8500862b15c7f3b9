"""Pools of series: held without filling, scored in parts of like length, and one long clip among short ones."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_similarity import made, oracle

from system.models import embeddings
from system.models import scores as scoring
from system.models.embeddings import Embedded, Ragged
from system.models.scores import frame_word
from system.ranking import embedding
from system.training.validation import direction_spread


def ragged(filled: Embedded) -> Ragged:
    assert filled.lengths is not None
    pairs = zip(filled.values, filled.lengths.tolist(), strict=True)
    return Ragged(torch.cat([series[:length] for series, length in pairs]), filled.lengths)


def test_selected_rows_and_padded_blocks_of_ragged_series_match_hand_values(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Ragged(torch.arange(12.0).view(6, 2), torch.tensor([3, 0, 1, 2]))
    found = pool.rows([3, 0, 3, 1])
    assert found.values[:, 0].tolist() == [8, 10, 0, 2, 4, 8, 10]
    assert found.lengths.tolist() == [2, 3, 2, 0]
    assert pool.rows(torch.tensor([2])).values.tolist() == [[6, 7]]
    monkeypatch.setattr(embeddings, "MAX_PADDED", 4)  # two frames
    parts = [
        (places.tolist(), part.values[..., 0].tolist(), part.lengths.tolist()) for places, part in pool.padded_parts()
    ]
    assert parts == [([1, 2], [[0], [6]], [0, 1]), ([3], [[8, 10]], [2]), ([0], [[0, 2, 4]], [3])]
    monkeypatch.setattr(embeddings, "MAX_PADDED", 1 << 24)
    ((places, part),) = pool.padded_parts()
    assert places.tolist() == [1, 2, 3, 0]
    assert part.values[2].tolist() == [[8, 9], [10, 11], [0, 0]]


@pytest.mark.parametrize(("dots", "values"), [(1, 1), (12, 20), (40, 1 << 24), (1 << 24, 30)])
def test_ragged_scores_match_pairwise_scores(dots: int, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides may be ragged: validation scores clips against clips, too."""
    monkeypatch.setattr(scoring, "AT_ONCE", dots)
    monkeypatch.setattr(embeddings, "MAX_PADDED", values)
    clips, captions = made(1, [3, 1, 20, 0, 2, 5, 1]), made(2, [2, 4, 1, 0, 6])
    for first, second in ((clips, captions), (clips, clips)):
        expected = oracle(first, second)
        assert torch.allclose(frame_word(ragged(first), ragged(second)), expected, rtol=0, atol=1e-12)
        assert torch.allclose(frame_word(ragged(first), second), expected, rtol=0, atol=1e-12)
        assert torch.allclose(frame_word(first, ragged(second)), expected, rtol=0, atol=1e-12)


def test_scoring_a_long_clip_computes_blocks_within_the_limit_of_dot_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AT_ONCE limits the dot products per block; clips that fit are scored together."""
    monkeypatch.setattr(scoring, "AT_ONCE", 1 << 10)
    sizes: list[int] = []
    real = scoring._product_sums

    def watched(frames: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        sizes.append(frames[..., 0].numel() * len(words))
        return real(frames, words)

    monkeypatch.setattr(scoring, "_product_sums", watched)
    clips, captions = made(6, [5, 4000, 16, 7]), made(7, [10] * 6)
    frame_word(ragged(clips), captions)
    assert max(sizes) <= 4000, "one word of the long clip"


def test_spread_and_share_of_zeros_are_equal_for_ragged_and_padded_series() -> None:
    filled = made(3, [4, 1, 0, 9], dim=3)
    filled.values[0, 1] = 1e-7
    assert direction_spread(ragged(filled)) == pytest.approx(
        direction_spread(Embedded(filled.values, filled.lengths)), abs=1e-12
    )


def test_clips_are_divided_into_embedding_batches_as_computed_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(lengths: list[int], seconds: list[float]) -> list[tuple[int, int]]:
        return [(part.start, part.stop) for part in embedding._batch_slices(lengths, seconds)]

    monkeypatch.setattr(embedding, "CLIPS_PER_BATCH", 3)
    monkeypatch.setattr(embedding, "SECONDS_PER_BATCH", 90)
    assert groups([5] * 7, [0.0] * 7) == [(0, 3), (3, 6), (6, 7)]
    assert groups([5, 5, 6], [30.0, 30.0, 30.0]) == [(0, 3)]
    assert groups([5, 5, 6], [30.0, 30.0, 31.0]) == [(0, 2), (2, 3)]
    assert groups([5, 5, 21], [0.0] * 3) == [(0, 2), (2, 3)], "3 x 21 frames are more than twice 31"
    assert groups([5, 5, 20], [0.0] * 3) == [(0, 3)]
    assert groups([5, 6], [100.0, 120.0]) == [(0, 1), (1, 2)], "longer than a batch may be"
    assert groups([], []) == []


_POOL = """
import json, sys
from dataclasses import replace
from pathlib import Path
import numpy as np
import tiny, torch
from augmented import clip
from heard import slaney
from system.features.bank import Bank
from system.features.extract import Features
from system.models.text.words import write_word_vectors
from system.runs.open import build_model
from system.recipe.load import load_recipe
from system.ranking.embedding import embed_clips, embed_texts
from system.training.validation import Validation

folder, long = Path(sys.argv[1]), int(sys.argv[2])
COUNT, SHORTEST, LONGEST = 100, 250, 750  # frames of 0.02 s
world = tiny.make_world(folder / "world", {"development": 2, "validation": 2, "evaluation": 2})
content = tiny.recipe(world, folder)
words = "a deep tone sounds somebody plays low note hum goes on one shrill beep it is".split()
draws = np.random.default_rng(0)
write_word_vectors(folder / "words.bin", {word: draws.normal(size=300) for word in words})
content["model"] = {
    "audio": {
        "kind": "crnn", "experts": slaney(), "hidden": 150, "dropout": 0.2, "embedding": "frames",
    },
    "text": {
        "kind": "word_vectors", "vectors": str(folder / "words.bin"), "dim": 300, 
        "embedding": "words",
    },
    "score": {"kind": "frame_word"},
}
for stage in content["stages"].values():
    ranking = {"kind": "ranking", "weight": 1, "margin": 0.5, "relax": "none"}
    stage["losses"] = [ranking | {"negatives": sys.argv[3]}]
    stage["batch_size"], stage["monitor"]["metrics"] = 32, ["loss", "m1", "m2", "mAP@10"]
recipe = load_recipe(tiny.write_recipe(folder / "r.yaml", content)).recipe
torch.manual_seed(0)
model = build_model(recipe, [])
lengths = draws.integers(SHORTEST, LONGEST, COUNT).tolist() + [60_000] * long
bank = Bank(folder / "bank", 64, "float32", {})
series = ((str(n), np.random.default_rng(n).normal(-10, 3, (length, 64))) for n, length in enumerate(lengths))
tiny.store_all(bank, series)
clips = [clip(f"{n}.wav", f"one deep beep {n}") for n in range(len(lengths))]
clips = [replace(one, seconds=length / 50) for one, length in zip(clips, lengths)]
features = Features({"logmel": bank}, {one.id: str(n) for n, one in enumerate(clips)})
texts = ["a deep tone", "somebody plays", "it is on"] * 40
pool = embed_clips(model, clips, features)
with torch.inference_mode():
    scores = model.score_matrix(embed_texts(model, texts), pool)
del pool
(stage,) = recipe.stages.values()
Validation(clips, stage, features)(model)
peak = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 2**20
print(json.dumps({"gib": peak, "scores": scores[:3, :COUNT].tolist()}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("negatives", ["audio_hard"])
def test_scoring_a_twenty_minute_clip_needs_less_than_2_gb(root: Path, tmp_path: Path, negatives: str) -> None:
    """Embedded by the CRNN, scored, and validated in batches of 32, among 100 clips of 5 to 15 s."""
    found = {}
    for long in (0, 1):
        folder = tmp_path / str(long)
        folder.mkdir()
        command = [sys.executable, "-c", _POOL, str(folder), str(long), negatives]
        paths = f"{root}:{root / 'tests/helpers'}:{root / 'tests/system'}"
        environment = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        found[long] = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{found[0]['gib']:.2f} GiB without, {found[1]['gib']:.2f} GiB with it")
    assert found[1]["gib"] - found[0]["gib"] < 2e9 / 2**30
    assert np.allclose(found[0]["scores"], found[1]["scores"], rtol=0, atol=1e-6)
    assert np.ptp(found[0]["scores"]) > 1e-3
