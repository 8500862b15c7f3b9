"""Pools of series: held without filling, scored in parts of like length, and one long clip among short ones."""

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
