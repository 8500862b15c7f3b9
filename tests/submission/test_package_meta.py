"""Entries of meta.yaml: hand-computed values from invented runs."""

import copy
import functools
import itertools
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from submission.editions import get_edition
from submission.package.about import About
from submission.package.meta import _external_sources, count_parameters
from submission.package.meta_model import meta_faults
from submission.runs.finished import FinishedRun
from submission.runs.recipe import EncoderSettings, Kind, ModelSettings, RankSettings, ResolvedRecipe
from submission.runs.record import ExpertFacts, Parameters, RunResult, SourceFacts

FOLDERS = itertools.count()


def run_of(
    trained: dict[str, int],
    frozen: dict[str, int],
    kinds: dict[str, str],
    sets: dict[str, dict[str, Any]] | None = None,
    text: str | None = None,
) -> FinishedRun:
    """Return a run with one ranked entry. kinds: of its experts, by name. sets: of its one training source."""
    return FinishedRun(
        folder=Path(f"run{next(FOLDERS)}"),
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


def test_frozen_model_shared_by_members_is_counted_once() -> None:
    """Two runs train 10 + 1 and 20 + 2 parameters. One calls PANNs `a`, the other `b`; both use one network of 500."""
    one = run_of({"a": 10, "text": 1}, {"a": 500, "text": 70}, {"a": "panns"}, text="minilm")
    two = run_of({"b": 20, "text": 2}, {"b": 500, "c": 30, "text": 70}, {"b": "panns", "c": "vggish"}, text="minilm")
    assert count_parameters([one]) == (11, 570)
    assert count_parameters([one, two]) == (11 + 22, 500 + 30 + 70)
    again = one.__class__(one.folder, one.result, one.recipe, one.entry)
    assert count_parameters([one, again]) == (11, 570), "one checkpoint, with and without a correction"
    other = run_of({"text": 2}, {"text": 90}, {}, text="bert")
    assert count_parameters([one, other]) == (11 + 2, 570 + 90)


@pytest.mark.parametrize(
    ("clips", "captions", "has", "each"),
    [(3, 7, True, 2.33), (3, 0, False, 0.0), (6, 4, True, 0.67), (2, 10, True, 5.0)],
)
def test_meta_yaml_entry_of_an_external_training_set_matches_hand_values(
    clips: int, captions: int, has: bool, each: float
) -> None:
    part = {"clips": clips, "captions": captions, "hours": 0.25, "licences": {"CC0": clips}}
    about = About.model_construct(sources={})
    (found,) = _external_sources([run_of({"text": 1}, {}, {}, {"tones": part})], about)
    assert found == {
        "name": "tones", "purpose": "training", "url": None, "has_audio": True, "has_captions": has,
        "nb_captions_per_audio": each, "total_audio_length": 15.0, "licences": {"CC0": clips},
    }  # fmt: skip


def test_licences_of_weights_are_in_meta_yaml() -> None:
    """An expert with a recorded licence, one without, and an encoder that starts from published weights."""
    run = run_of({"text": 1}, {"a": 5, "b": 5, "audio": 7}, {"a": "beats", "b": "panns"})
    run.recipe.model.audio.__dict__["weights"] = "weights/m2d.pth"
    run.result.__dict__["weight_licences"] = {"a": "MIT", "audio": "evaluation only"}
    entries = {entry["name"]: entry for entry in _external_sources([run], About.model_construct(sources={}))}
    assert {name: entry.get("licences") for name, entry in entries.items()} == {
        "beats": "MIT", "panns": None, "m2d.pth": "evaluation only",
    }  # fmt: skip


META: dict[str, Any] = {
    "submission": {
        "label": "Doe_EX_task8_1",
        "name": "One",
        "abbreviation": "one",
        "authors": [
            {
                "lastname": "Doe",
                "firstname": "Jo",
                "email": "jo@example.org",
                "affiliation": {"abbreviation": "EX", "institute": "Example", "location": "Town"},
                "corresponding": True,
            }
        ],
    },
    "system": {
        "description": dict.fromkeys(
            ("input_sampling_rate", "acoustic_features", "machine_learning_method", "loss_function", "optimizer"), "a"
        ),
        "complexity": {"total_parameters": 3},
        "external_datasets": [{"name": "a", "purpose": "training", "url": "x.org", "total_audio_length": 1.5}],
    },
    "results": {"development_testing": {"R1": 0.1, "R5": 0.2, "R10": 1, "mAP10": 0}},
}
NOT_CHECKED = {"corresponding", "purpose", "url", "total_audio_length"}  # of any value


@pytest.mark.parametrize("odd", [None, "x", [[1]], -1, True])
def test_invalid_values_in_meta_yaml_are_reported_by_key(odd: Any) -> None:
    edition = get_edition(2024)
    assert meta_faults(META, "Doe_EX_task8_1", edition) == []
    for path in paths_of(META):
        changed = copy.deepcopy(META)
        part = functools.reduce(operator.getitem, path[:-1], changed)
        is_text = isinstance(part[path[-1]], str)
        part[path[-1]] = odd
        faults = meta_faults(changed, "Doe_EX_task8_1", edition)
        if not is_text and path[-1] not in NOT_CHECKED:
            assert any(fault.startswith(".".join(map(str, path))) for fault in faults), path


def paths_of(part: Any) -> Iterator[tuple[Any, ...]]:
    for key in part if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ():
        yield (key,)
        yield from ((key, *rest) for rest in paths_of(part[key]))


@pytest.mark.parametrize("block", [(), ("submission",), ("system", "description"), ("submission", "authors", 0)])
def test_unknown_keys_in_meta_yaml_are_not_checked(block: tuple[str | int, ...]) -> None:
    changed = copy.deepcopy(META)
    functools.reduce(operator.getitem, block, changed)[2025] = "a key that yaml reads as a number"
    assert meta_faults(changed, "Doe_EX_task8_1", get_edition(2024)) == []
