"""The index of large pools: its results, and unchanged rankings of small pools."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from served import clip_of, model_of, searching
from test_ragged import ragged
from test_similarity import made

from submission.ordering import ranked_columns
from system.models.embeddings import Embedded, prepare_for_scoring
from system.models.scores import cosine
from system.models.text.encoder import TextEncoder
from system.ranking import index, model
from system.ranking.index import VectorIndex, build_index
from system.serve.search import Search


class Drawn(TextEncoder):
    """Embeds a text by its number."""

    def forward(self, texts: Sequence[str]) -> Embedded:
        return self.embed_batch(texts)

    def embed_batch(self, texts: Sequence[str]) -> Embedded:
        seeds = [int(text) if text.isdigit() else 0 for text in texts]
        return Embedded(torch.stack([torch.randn(32, generator=torch.manual_seed(seed)) for seed in seeds]))

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        return []

    def save_assets(self, folder: Path) -> None: ...


def pool(count: int) -> Embedded:
    """Every third clip is as the one before it, and one of zeros; sixty are so near to a query that 8 bits hardly tell
    which is nearest."""
    values = torch.randn(count, 32, generator=torch.manual_seed(99))
    values[1::3] = values[0::3][: len(values[1::3])]
    values[5] = 0
    values[200:260] = torch.randn(32, generator=torch.manual_seed(3)) + 0.01 * values[200:260]
    return Embedded(values)


def searched(count: int) -> Search:
    names = [f"{number:05d}.wav" for number in np.random.default_rng(0).permutation(count)]
    return searching(model_of(Drawn()), [clip_of(Path("/sounds") / name) for name in names], pool(count))


def expected(count: int, text: str, last: int) -> tuple[list[int], list[float]]:
    """Rank without an index."""
    scores = cosine(pool(count), Drawn().embed_batch([text])).T.numpy()
    names = [f"{number:05d}.wav" for number in np.random.default_rng(0).permutation(count)]
    rows = ranked_columns(scores, names, last)[0]
    return rows.tolist(), scores[0, rows].tolist()


def test_pool_of_6000_clips_is_ranked_without_building_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    found = searched(6000)
    assert found.pool.index is None
    for text in ("1", "2", "3"):
        hits = found.find(text, 50, 10)
        rows, scores = expected(6000, text, 60)
        assert hits is not None
        assert [hit.row for hit in hits] == rows[10:]
        assert [hit.score for hit in hits] == scores[10:]


def test_indexed_pool_gives_exact_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a clip are ordered by file name, pages are consecutive, and scores are exact."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(index, "MIN_CLIPS", 3000)
    monkeypatch.setattr(index, "CLIPS_AT_ONCE", 700)
    monkeypatch.setattr(index, "TRAINED_ON", 900)
    found = searched(3000)
    assert found.pool.index is not None
    for text in "123":
        rows, scores = expected(3000, text, 20)
        hits = [*(found.find(text, 10) or []), *(found.find(text, 10, 10) or [])]
        assert [hit.row for hit in hits] == rows
        assert [hit.score for hit in hits] == pytest.approx(scores, abs=1e-6)


def test_search_results_beyond_the_candidates_of_an_index_have_exact_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(index, "MIN_CLIPS", 3000)
    monkeypatch.setattr(model, "MAX_INDEXED", 15)
    found = searched(3000)
    monkeypatch.setattr(VectorIndex, "candidates", None)
    page = found.find("4", 10, 2995)
    assert page is not None
    assert [hit.row for hit in page] == expected(3000, "4", 3000)[0][2995:]
    assert found.find("4", 10, 5000) == []


def test_candidates_found_in_a_vector_index_match_hand_values() -> None:
    pytest.importorskip("faiss")
    units = torch.tensor([[1.0, 0], [0, 1], [0, 0], [-1, 0], [0.6, 0.8]])
    found = VectorIndex(units).candidates(torch.tensor([[1.0, 0], [0, -1]]), 3)
    assert found.tolist()[0] == [0, 4, 2] or found.tolist()[0] == [0, 4, 1]
    assert set(found[1].tolist()) == {0, 2, 3}
    assert VectorIndex(units).candidates(units[:1], 99).shape == (1, 5)


def test_pools_without_index_log_the_reason(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(index, "MIN_CLIPS", 6)
    assert build_index(prepare_for_scoring(Embedded(torch.ones(5, 3)))) is None
    assert not caplog.messages
    assert build_index(prepare_for_scoring(ragged(made(1, [2] * 6)))) is None
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert build_index(prepare_for_scoring(Embedded(torch.ones(7, 3)))) is None
    frames, lacking = caplog.messages
    assert frames.startswith("this model compares frames with words and can use no index, so ")
    assert frames.endswith("every query is scored against all 6 clips")
    assert lacking.startswith(
        "faiss is not installed, so every query is scored against all 7 clips; python -m pip install"
    )


def test_index_is_built_for_more_than_50000_clips() -> None:
    assert index.MIN_CLIPS == 50_001
