"""meta.yaml of a system of moments: filled from its runs, and checked.

Source: see MomentsEdition.sources, `result`; `freezed_parameters` is the template's spelling.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from submission.editions import MomentsEdition
from submission.package.about import About, System
from submission.package.meta import (
    addresses_of,
    audio_name,
    augmentation_of,
    check_submission,
    frozen_experts,
    in_words,
    is_count,
    lacking,
    loss_in_words,
    members_of,
    missing_blocks,
    parameters_of,
    stages_of,
    submission_block,
    text_name,
    training_sets,
)
from submission.runs.finished import FinishedMoments

BLOCKS = {
    "submission": ("label", "name", "abbreviation", "authors"),
    "system": ("model", "dataset", "ensemble"),
    "results": (),
}
MODEL = ("audio_models", "text_models", "LLMs", "trainable_parameters", "freezed_parameters", "loss_function")
DATASET = ("data_augmentation", "external_data_resources", "audio_captions")
LISTS = ("audio_models", "text_models", "LLMs", "loss_function")
OFFICIAL = frozenset({"castella", "clotho_moment"})  # training sets that are not external


def make_moments_meta(
    runs: Sequence[FinishedMoments],
    about: About,
    system: System,
    figures: Mapping[str, float],
    edition: MomentsEdition,
    label: str,
) -> dict[str, Any]:
    """The content of meta.yaml, whose results are per cent. runs: one, or those of an ensemble. figures: by metric, in
    [0, 1].

    audio_captions counts the moments of all sources that were trained on, and of sources without moments the captions.
    External data sets and pre-trained models are given with their addresses.
    """
    trained, frozen = parameters_of(runs)
    names = [_audio_model(run) for run in runs]
    return {
        "submission": submission_block(about, system, label),
        "system": {
            "model": {
                "audio_models": list(dict.fromkeys(name for each in names for name in each)),
                "text_models": list(dict.fromkeys(map(text_name, runs))),
                "LLMs": [],
                "trainable_parameters": _millions(trained),
                "freezed_parameters": _millions(frozen),
                "loss_function": list(dict.fromkeys(loss_in_words(t) for s in stages_of(runs) for t in s.losses)),
            },
            "dataset": {
                "data_augmentation": augmentation_of(runs),
                "external_data_resources": list(_external(runs, about)),
                "audio_captions": _pairs(runs),
            },
            "ensemble": members_of(runs) > 1,
            **({"source_code": about.source_code} if about.source_code else {}),
        },
        "results": results_of(figures, edition),
    }


def results_of(figures: Mapping[str, float], edition: MomentsEdition) -> dict[str, dict[str, float]]:
    """The block `results`: figures in per cent with two digits, by the template's keys."""
    return {edition.result: {key: round(100 * figures[metric], 2) for metric, key in _results(edition)}}


def check_moments_meta(meta: Any, label: str, edition: MomentsEdition) -> Iterator[str]:
    """What does not fit the template, a sentence each. label: of the folder the file lies in."""
    if missing := missing_blocks(meta, BLOCKS):
        yield missing
        return
    yield from check_submission(meta["submission"], label, edition)
    model, dataset, ensemble = (meta["system"][key] for key in BLOCKS["system"])
    yield from lacking(model, MODEL, "system.model")
    yield from lacking(dataset, DATASET, "system.dataset", null=True)
    for key in LISTS:
        if isinstance(model, dict) and not isinstance(model.get(key, []), list):
            yield f"system.model.{key} is {in_words(model[key])}, not a list"
    if isinstance(dataset, dict):
        if not isinstance(external := dataset.get("external_data_resources", []), list):
            yield f"system.dataset.external_data_resources is {in_words(external)}, not a list"
        if not is_count(dataset.get("audio_captions", 0)):
            yield f"system.dataset.audio_captions is {in_words(dataset['audio_captions'])}, not a whole number"
    if not isinstance(ensemble, bool):
        yield f"system.ensemble is {in_words(ensemble)}, not true or false"
    results = meta["results"].get(edition.result)
    if not isinstance(results, dict):
        yield f"results.{edition.result} is missing"
        return
    for _, key in _results(edition):
        value = results.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
            yield f"results.{edition.result}.{key} is {in_words(value)}, not a number from 0 to 100"


def _results(edition: MomentsEdition) -> list[tuple[str, str]]:
    """Metrics that meta.yaml gives, the primary one first, and their keys in it: Recall1@0.7 of R1@0.7."""
    metrics = [metric for metric in edition.metrics if metric.startswith("R1@")]
    return [(metric, f"Recall{metric[1:]}") for metric in sorted(metrics, key=lambda one: one != edition.metric)]


def _audio_model(run: FinishedMoments) -> list[str]:
    """The pre-trained ones; of a run without any its own kind."""
    pretrained = [run.result.experts[name].model for name in frozen_experts(run)]
    pretrained += [weights] if (weights := audio_name(run)) else []
    return pretrained or [run.recipe.model.audio.kind]


def _millions(parameters: int) -> str:
    """As the template has it, e.g. `9.93 M`, with three digits that count."""
    millions = parameters / 1e6
    return f"{millions:.0f} M" if millions >= 100 else f"{millions:.3g} M"


def _pairs(runs: Sequence[FinishedMoments]) -> int:
    found: dict[str, int] = {}
    for run in runs:
        for source in run.result.data.values():
            if source.trains:
                captions = sum(part.captions for part in source.sets.values())
                count = captions if source.moments is None else source.moments
                found[str(sorted(part.document().items() for part in source.sets.values())) + str(count)] = count
    return sum(found.values())


def _external(runs: Sequence[FinishedMoments], about: About) -> Iterator[dict[str, Any]]:
    addresses = addresses_of(runs) | {name: address.url for name, address in about.sources.items()}
    names = [name for name in training_sets(runs) if name not in OFFICIAL]
    names += [name for name in addresses_of(runs) if name not in training_sets(runs)]
    for name in dict.fromkeys(names):
        yield {"name": name, "url": addresses[name]}
