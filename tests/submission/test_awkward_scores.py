"""Figures of queries, pools and runs that differ from each other."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from submission.editions import get_moments_edition
from submission.errors import SubmissionError
from submission.formats.matrix_csv import _shortest_texts
from submission.formats.score_matrix import ScoreMatrix
from submission.metrics.blend import SCALES
from submission.metrics.compare import compare
from submission.metrics.scoring import ranks_from_audio
from submission.package import moments_meta
from submission.package.meta import count_parameters
from submission.package.meta_model import figure_keys
from submission.report.overview import _format_licences


class Misread(np.ndarray[Any, Any]):
    """Scores whose shortest texts are read back as other numbers, as happens to one float32 in many millions."""

    def astype(self, kind: Any, *_: Any, **__: Any) -> Any:
        return np.array([f"{score:.3g}" for score in self.tolist()]) if kind == "U" else np.asarray(self).astype(kind)


def test_matrix_csv_adds_digits_to_a_score_that_would_be_read_back_as_another_number() -> None:
    bits = np.random.default_rng(3).integers(2**29, 2**30, 1000, dtype=np.uint32)
    scores = np.concatenate([bits.view(np.float32), np.array([7.0385307e-26, 1 / 3], np.float32)])
    for given in (scores, scores.view(Misread)):
        read = np.array([float(text) for text in _shortest_texts(given)]).astype(np.float32)
        assert np.array_equal(read, scores)


def test_standardised_scores_of_a_query_with_small_or_zero_spread_are_finite() -> None:
    scores = np.array([[1.0, 2.0, 3.0], [1.0, 1.00002, 1.00004], [5.0, 5.0, 5.0]])
    values = SCALES["standardised"](scores, ["a", "b", "c"])
    assert np.allclose(values[1], values[0], atol=1e-6)
    assert not values[2].any(), "equal scores have no spread"


def system(texts: list[str], values: list[float]) -> Any:
    n = len(texts)
    found = SimpleNamespace(texts=texts, n_pool=4, n_relevant=np.ones(n, np.int64), groups=np.arange(n))
    return SimpleNamespace(queries=found, primary="m", per_query={"m": np.array(values)})


def test_compare_refuses_systems_whose_repeated_query_texts_are_in_another_order() -> None:
    same = system(["rain", "a dog", "rain"], [0.1, 0.2, 0.3])
    assert compare(same, [system(["rain", "a dog", "rain"], [0.1, 0.2, 0.3])]).mean == 0
    with pytest.raises(SubmissionError, match="different"):
        compare(same, [system(["a dog", "rain", "rain"], [0.2, 0.1, 0.3])])
    moved = compare(
        system(["rain", "a dog", "wind"], [0.1, 0.2, 0.6]), [system(["wind", "rain", "a dog"], [0.5, 0.1, 0.2])]
    )
    assert moved.mean == pytest.approx(0.1 / 3)


def test_audio_to_text_scores_skip_clips_without_captions() -> None:
    relevant = [["c3"], ["c1"], ["c3"]]
    ids = [f"c{n}" for n in range(4)]
    matrix = ScoreMatrix(
        values=np.arange(12, dtype=np.float32).reshape(3, 4),
        query_ids=["q0", "q1", "q2"],
        query_texts=["rain", "a dog", "wind"],
        clip_ids=ids,
        file_names=[f"{id}.wav" for id in ids],
        relevant=relevant,
        facts={},
    )
    found = ranks_from_audio(matrix)
    assert found.texts == ["c1.wav", "c3.wav"]
    assert found.n_relevant.tolist() == [1, 2]


def run(members: int, trained: int, frozen: dict[str, int]) -> Any:
    parameters = SimpleNamespace(trained={"audio": trained - 10, "text": 10}, frozen=frozen)
    experts = {name: SimpleNamespace(model=name) for name in frozen}
    named = [SimpleNamespace(stage="train", checkpoint=str(number)) for number in range(members)]
    result = SimpleNamespace(parameters=parameters, experts=experts)
    return SimpleNamespace(folder=Path(str(trained)), members=named, result=result)


def test_meta_yaml_counts_the_parameters_of_every_member_of_an_ensemble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("submission.package.meta.audio_name", lambda run: "a")
    monkeypatch.setattr("submission.package.meta.text_name", lambda run: "t")
    runs = [run(3, 100, {"panns": 7}), run(1, 50, {"panns": 7, "passt": 9})]
    assert count_parameters(runs) == (350, 16)


def test_moment_figures_in_meta_yaml_have_two_digits() -> None:
    edition = get_moments_edition(2026)
    figures = dict.fromkeys(figure_keys(edition), 0.123456)
    assert set(moments_meta.results_block(figures, edition)[edition.result].values()) == {12.35}


def test_report_sorts_licences_by_their_number_of_clips() -> None:
    assert _format_licences({"CC0": 2, "CC BY": 1_500, "not known": 30}) == "CC BY (1,500), not known (30), CC0 (2)"
