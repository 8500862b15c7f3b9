"""What a run's system is, in numbers: its parameters, its experts, the data behind it, and its clips one by one.

Written beside the scores, so that the report and the package are filled from the run's own files.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.files import write_table
from data_tools.manifest import Clip
from system.batches.data import Data
from system.models.retrieval import RetrievalModel
from system.recipe import schema


def parameters_of(recipe: schema.Recipe, model: RetrievalModel) -> dict[str, Any]:
    """Of the whole system: what is trained, by part; what is frozen, by expert, `audio`, or `text`; the total."""
    frozen = {name: expert.parameters for name, expert in recipe.model.audio.experts.items() if expert.parameters}
    if count := sum(p.numel() for p in model.audio.parameters() if not p.requires_grad):
        frozen["audio"] = count
    if count := model.text.frozen_parameters():
        frozen["text"] = count
    trained = model.parameters_by_part()
    return {"trained": trained, "frozen": frozen, "total": sum(trained.values()) + sum(frozen.values())}


def experts_of(recipe: schema.Recipe) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "kind": expert.kind,
            "rate": expert.rate,
            "dim": expert.dim,
            "frames_per_second": expert.frames_per_second,
            "published": sorted(expert.published().values()),
        }
        for name, expert in recipe.model.audio.experts.items()
    }


def data_of(recipe: schema.Recipe, data: Data) -> dict[str, dict[str, Any]]:
    """Of every source: its data sets, the stages that train on it, and where it is published."""
    return {
        name: {
            "sets": {
                of: _set([clip for clip in clips if clip.source == of]) for of in {clip.source: 0 for clip in clips}
            },
            "trains": [stage for stage, settings in recipe.stages.items() if name in settings.train.data],
            "published": recipe.data[name].published,
        }
        for name, clips in data.clips.items()
    }


def _set(clips: Sequence[Clip]) -> dict[str, Any]:
    return {
        "clips": len(clips),
        "captions": sum(len(clip.captions) for clip in clips),
        "hours": sum(clip.seconds or 0.0 for clip in clips) / 3600,
        "licences": dict(Counter(clip.licence or "not known" for clip in clips).most_common()),
    }


def write_clips(path: Path, clips: Sequence[Clip], norms: dict[str, np.ndarray]) -> None:
    """A line a clip that was ranked: id, audio file, seconds, and the norm of each expert's embedding."""
    rows = [
        [clip.id, clip.path, "" if clip.seconds is None else f"{clip.seconds:.3f}"]
        + [f"{values[row]:.6g}" for values in norms.values()]
        for row, clip in enumerate(clips)
    ]
    write_table(path, ["clip", "path", "seconds", *(f"norm {name}" for name in norms)], rows)
