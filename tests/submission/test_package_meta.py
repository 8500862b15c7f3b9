"""What a package says of its systems, worked by hand from runs that are made up."""

from pathlib import Path
from typing import Any

import pytest

from submission.package.about import About
from submission.package.meta import _external, parameters_of
from submission.runs.finished import FinishedRun
from submission.runs.record import (
    EncoderSettings,
    ExpertFacts,
    Kind,
    ModelSettings,
    Parameters,
    RankSettings,
    ResolvedRecipe,
    RunResult,
    SourceFacts,
)


def run_of(
    trained: dict[str, int],
    frozen: dict[str, int],
    kinds: dict[str, str],
    sets: dict[str, dict[str, Any]] | None = None,
    text: str | None = None,
) -> FinishedRun:
    """A run with one ranked entry. kinds: of its experts, by name. sets: of its one training source."""
    return FinishedRun(
        folder=Path("run"),
        result=RunResult.model_construct(
            parameters=Parameters.model_construct(trained=trained, frozen=frozen),
            experts={
                name: ExpertFacts(kind=kind, rate=1, dim=1, frames_per_second=1, published=[])
                for name, kind in kinds.items()
            },
            data={"train": SourceFacts.model_validate({"sets": sets or {}, "trains": ["only"], "published": None})},
        ),
        recipe=ResolvedRecipe.model_construct(
            model=ModelSettings(
                audio=EncoderSettings(kind="expert_heads"),
                text=EncoderSettings(kind="x", model=text),
                score=Kind(kind="cosine"),
            ),
            rank={"evaluation": RankSettings(kind="checkpoint", stage="only", checkpoint="last")},
        ),
        entry="evaluation",
    )


def test_a_frozen_model_that_several_systems_share_is_counted_once() -> None:
    """Two runs train 10 + 1 and 20 + 2; one names PANNs `a`, the other `b`; both hear it through one network of 500."""
    one = run_of({"a": 10, "text": 1}, {"a": 500, "text": 70}, {"a": "panns"}, text="minilm")
    two = run_of({"b": 20, "text": 2}, {"b": 500, "c": 30, "text": 70}, {"b": "panns", "c": "vggish"}, text="minilm")
    assert parameters_of([one]) == (11, 570)
    assert parameters_of([one, two]) == (11 + 22, 500 + 30 + 70)
    other = run_of({"text": 2}, {"text": 90}, {}, text="bert")
    assert parameters_of([one, other]) == (11 + 2, 570 + 90)


@pytest.mark.parametrize(
    ("clips", "captions", "has", "each"),
    [(3, 7, True, 2.33), (3, 0, False, 0.0), (6, 4, True, 0.67), (2, 10, True, 5.0)],
)
def test_captions_of_a_training_set_by_hand(clips: int, captions: int, has: bool, each: float) -> None:
    part = {"clips": clips, "captions": captions, "hours": 0.25, "licences": {"CC0": clips}}
    about = About.model_construct(sources={})
    (found,) = _external([run_of({"text": 1}, {}, {}, {"tones": part})], about)
    assert found == {
        "name": "tones", "purpose": "training", "url": None, "has_audio": True, "has_captions": has,
        "nb_captions_per_audio": each, "total_audio_length": 15.0, "licences": {"CC0": clips},
    }  # fmt: skip
