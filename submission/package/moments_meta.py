"""meta.yaml of a system of moments, filled from its runs.

Source: DCASE's template of meta.yaml, which submission/editions.py names (item `result` of the attribute `sources`).
The spelling of the key `freezed_parameters` is that of this template.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from submission.editions import MomentsEdition
from submission.package.about import About, System
from submission.package.meta import (
    audio_name,
    augmentation_of,
    count_members,
    count_parameters,
    external_addresses,
    frozen_experts,
    loss_in_words,
    submission_block,
    text_name,
    trained_stages,
    training_sets,
    weight_licences,
)
from submission.package.meta_model import figure_keys
from submission.runs.finished import FinishedMoments

OFFICIAL = frozenset({"castella", "clotho_moment"})  # training sets that are not external


def make_moments_meta(
    runs: Sequence[FinishedMoments],
    about: About,
    system: System,
    figures: Mapping[str, float],
    edition: MomentsEdition,
    label: str,
) -> dict[str, Any]:
    """Return the content of meta.yaml for a system that finds moments, with results in per cent.

    Args:
        runs: The run of the system, or all runs of a blend.
        system: The participant's facts about the system.
        figures: Dict from metric to value, in [0, 1].
        label: Label of the system.

    The key audio_captions is the number of moments in all training data; for training data without moments, captions
    are counted.
    """
    trained, frozen = count_parameters(runs)
    names = [_audio_models(run) for run in runs]
    return {
        "submission": submission_block(about, system, label),
        "system": {
            "model": {
                "audio_models": list(dict.fromkeys(name for each in names for name in each)),
                "text_models": list(dict.fromkeys(map(text_name, runs))),
                "LLMs": [],
                "trainable_parameters": _format_millions(trained),
                "freezed_parameters": _format_millions(frozen),
                "loss_function": list(dict.fromkeys(loss_in_words(t) for s in trained_stages(runs) for t in s.losses)),
            },
            "dataset": {
                "data_augmentation": augmentation_of(runs),
                "external_data_resources": list(_external_sources(runs, about)),
                "audio_captions": _count_pairs(runs),
            },
            "ensemble": count_members(runs) > 1,
            **({"source_code": about.source_code} if about.source_code else {}),
        },
        "results": results_block(figures, edition),
    }


def results_block(figures: Mapping[str, float], edition: MomentsEdition) -> dict[str, dict[str, float]]:
    """Return the block `results` of meta.yaml: metrics by key, in per cent with two decimals."""
    return {edition.result: {key: round(100 * figures[metric], 2) for metric, key in figure_keys(edition).items()}}


def _audio_models(run: FinishedMoments) -> list[str]:
    """Return the names of a run's pre-trained audio models or, if it has none, the kind of its audio encoder."""
    pretrained = [run.result.experts[name].model for name in frozen_experts(run)]
    pretrained += [weights] if (weights := audio_name(run)) else []
    return pretrained or [run.recipe.model.audio.kind]


def _format_millions(parameters: int) -> str:
    """Format a number of parameters in millions, e.g. `9.93 M`, with three significant digits."""
    millions = parameters / 1e6
    return f"{millions:.0f} M" if millions >= 100 else f"{millions:.3g} M"


def _count_pairs(runs: Sequence[FinishedMoments]) -> int:
    """Return the number of (text, recording) pairs in the training data of all runs; each data set counts once."""
    counts: dict[str, int] = {}
    for run in runs:
        for source in run.result.data.values():
            if source.trains:
                captions = sum(part.captions for part in source.sets.values())
                count = captions if source.moments is None else source.moments
                counts[str(sorted(part.document().items() for part in source.sets.values())) + str(count)] = count
    return sum(counts.values())


def _external_sources(runs: Sequence[FinishedMoments], about: About) -> Iterator[dict[str, Any]]:
    """Yield the name and address of each external data set and pre-trained model; official data are left out."""
    addresses = external_addresses(runs) | {name: address.url for name, address in about.sources.items()}
    names = [name for name in training_sets(runs) if name not in OFFICIAL]
    names += [name for name in external_addresses(runs) if name not in training_sets(runs)]
    licences = weight_licences(runs)
    for name in dict.fromkeys(names):
        yield {"name": name, "url": addresses[name], **({"licences": licences[name]} if name in licences else {})}
