"""The description of a submitted system, meta.yaml."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from submission.editions import RESULT, Edition
from submission.package.about import About, System
from submission.package.meta_model import DESCRIPTION, figure_keys
from submission.runs.entry import Entry
from submission.runs.record import SetFacts, SourceFacts

OFFICIAL = frozenset({"castella", "clotho_moment"})  # training sets of 2026 that are not external
MONITORED = {"last": "none (last checkpoint)", None: "none (no training)"}


class Network(NamedTuple):
    """A pre-trained model of a run.

    Attributes:
        name: None if it has no name of its own.
        part: Expert, or `audio` or `text` for an encoder.
        parameters: Number of its frozen parameters.
    """

    name: str | None
    part: str
    url: str | None
    licence: str | None
    parameters: int


def system_label(about: About, edition: Edition, index: int) -> str:
    """Return a system's label.

    It has the last name and the institute of the corresponding author, the task, and the number of the system.
    """
    author = about.corresponding
    names = (re.sub(r"[\s._/]+", "-", text) for text in (author.lastname, author.affiliation.abbreviation))
    return f"{'_'.join(names)}_task{edition.task}_{index}"


def make_meta(
    runs: Sequence[Entry], about: About, system: System, figures: Mapping[str, float], edition: Edition, label: str
) -> dict[str, Any]:
    """Return the content of meta.yaml.

    Args:
        figures: Metrics of the system, in [0, 1].
    """
    of_moments = edition.output == "windows"
    factor, digits = (100, 2) if of_moments else (1, 4)
    return {
        "submission": {
            "label": label,
            "name": system.name,
            "abbreviation": system.abbreviation,
            "authors": [author.model_dump() for author in about.authors],
        },
        "system": _moments_block(runs, about) if of_moments else _clips_block(runs, about, system),
        "results": {RESULT: {k: round(factor * figures[name], digits) for name, k in figure_keys(edition).items()}},
    }


def _clips_block(runs: Sequence[Entry], about: About, system: System) -> dict[str, Any]:
    return {
        "description": {key: _as_one(values) for key, values in describe(runs).items()} | system.description,
        "complexity": {"total_parameters": system.parameters or sum(count_parameters(runs))},
        "external_datasets": _external_sources(runs, about),
        "source_code": about.source_code,
    }


def _moments_block(runs: Sequence[Entry], about: About) -> dict[str, Any]:
    trained, frozen = count_parameters(runs)
    known = describe(runs)
    audio = [one.name for run in runs for one in networks(run) if one.part != "text" and one.name]
    external = [item for item in _external_sources(runs, about) if item["name"] not in OFFICIAL]
    return {
        "model": {
            "audio_models": list(dict.fromkeys(audio)) or known["audio_modelling"],
            "text_models": known["word_embeddings"],
            "LLMs": [],
            "trainable_parameters": f"{trained / 1e6:.4g} M",
            "freezed_parameters": f"{frozen / 1e6:.4g} M",
            "loss_function": known["loss_function"],
        },
        "dataset": {
            "data_augmentation": _as_one(known["data_augmentation"]),
            "external_data_resources": [{"name": item["name"], "url": item["url"]} for item in external],
            "audio_captions": sum(map(count_pairs, training_sources(runs))),
        },
        "ensemble": bool(known["ensemble"]),
        **({"source_code": about.source_code} if about.source_code else {}),
    }


def describe(runs: Sequence[Entry]) -> dict[str, list[Any]]:
    """Return the values of the block `description` of meta.yaml."""
    experts = [expert for run in runs for expert in run.result.experts.values()]
    models = [(run.recipe["model"]["audio"], run.recipe["model"]["text"]) for run in runs]
    members = [(run, member) for run in runs for member in run.members]
    stages = [run.recipe["stages"][member["stage"]] for run, member in members if member["stage"] is not None]
    optimizers = [stage["optimizer"] for stage in stages]
    checkpoints = [member.get("checkpoint") for _, member in members]
    facts: dict[str, list[Any]] = {
        "input_sampling_rate": [f"{rate / 1000:g}kHz" for rate in sorted({one.rate for one in experts}) if rate],
        "acoustic_features": [expert.kind for expert in experts if expert.rate],
        "acoustic_embeddings": [one.name for run in runs for one in networks(run) if one.part in run.result.experts],
        "data_augmentation": ["SpecAugment" for audio, _ in models if audio.get("spec_augment")],
        "machine_learning_method": [
            f"embeddings of {text['model']}" if audio["kind"] == "embeddings" else f"{audio['kind']}, {text['kind']}"
            for audio, text in models
        ],
        "learning_scheme": ["supervised"] * len(stages),
        "audio_modelling": [audio["kind"] for audio, _ in models],
        "word_embeddings": [encoder_weights(run)["text"] or "trained from scratch" for run in runs],
        "word_modelling": [text["kind"] for _, text in models],
        "loss_function": [loss_in_words(term) for stage in stages for term in stage["losses"]],
        "optimizer": [optimizer["kind"] for optimizer in optimizers],
        "learning_rate": [optimizer["lr"] for optimizer in optimizers],
        "weight_decay": [optimizer.get("weight_decay") for optimizer in optimizers],
        "metric_monitored": [MONITORED.get(name, f"validation {name}") for name in checkpoints],
        "ensemble": [len(members)] if len(members) > 1 else [],
    }
    return {key: list(dict.fromkeys(values)) for key, values in facts.items()}


def missing_facts(runs: Sequence[Entry], about: About, number: int, edition: Edition) -> Iterator[str]:
    """Yield the facts that neither runs nor about.yaml have."""
    system, at = about.systems[number], f"systems.{number}"
    if edition.output != "windows":
        known = describe(runs)
        for key in system.description.keys() - known.keys():
            yield f"{at}.description.{key}: unknown key"
        for key in DESCRIPTION:
            if not known[key] and key not in system.description:
                yield f"{at}.description.{key}: missing; write a value, for example none"
        # Frames that were read from files come from networks whose parameters may not be known.
        stored = [(run, name) for run in runs for name, expert in run.result.experts.items() if not expert.rate]
        are_counted = runs and all(name in run.result.parameters.frozen for run, name in stored)
        if not (system.parameters or (are_counted and sum(count_parameters(runs)))):
            yield f"{at}.parameters: missing; write the number of parameters of all models"
    for name, item in external_items(runs).items():
        if item["url"] is None and name not in about.sources:
            yield f"sources.{name}.url: missing; write its address, or null if it is not published"


def networks(run: Entry) -> list[Network]:
    """Return the pre-trained models of a run."""
    result, counts = run.result, run.result.parameters.frozen
    found: dict[str, tuple[str | None, str | None]] = {
        part: (expert.model, ", ".join(expert.published) or None)
        for part, expert in result.experts.items()
        if part in counts or expert.pretrained
    }
    found |= {part: (name, None) for part, name in encoder_weights(run).items() if name or part in counts}
    return [
        Network(name, part, url, result.weight_licences.get(part), counts.get(part, 0))
        for part, (name, url) in found.items()
    ]


def encoder_weights(run: Entry) -> dict[str, str | None]:
    """Return the name of each encoder's pre-trained model."""
    audio, text = run.recipe["model"]["audio"], run.recipe["model"]["text"]
    paths = {"audio": audio.get("weights"), "text": text.get("model") or text.get("vectors")}
    return {part: path and Path(path).name for part, path in paths.items()}


def count_parameters(runs: Sequence[Entry]) -> tuple[int, int]:
    """Return the numbers of trained and frozen parameters.

    A frozen network of several models counts once.
    """
    trained = {
        (run.folder.resolve(), one["stage"], one.get("checkpoint")): sum(run.result.parameters.trained.values())
        for run in runs
        for one in run.members
    }
    frozen = {(one.name or one.part, one.parameters) for run in runs for one in networks(run)}
    return sum(trained.values()), sum(count for _, count in frozen)


def training_sources(runs: Sequence[Entry]) -> list[SourceFacts]:
    """Return the data sources that the runs are trained on, each once."""
    sources = [source for run in runs for source in run.result.data.values() if source.trains]
    return list({(str(source.sets), source.moments): source for source in sources}.values())


def count_pairs(source: SourceFacts) -> int:
    """Return the number of (text, recording) pairs for training."""
    return sum(one.captions for one in source.sets.values()) if source.moments is None else source.moments


def _external_sources(runs: Sequence[Entry], about: About) -> list[dict[str, Any]]:
    """Return the items of `external_datasets`, with the addresses in about.yaml."""
    items = external_items(runs)
    for name, address in about.sources.items():
        other = {"name": name, "purpose": "other", "url": None, "total_audio_length": None}
        items.setdefault(name, other)["url"] = address.url
    return list(items.values())


def external_items(runs: Sequence[Entry]) -> dict[str, dict[str, Any]]:
    """Return what `external_datasets` says of each training set and pre-trained model, by name.

    `url` is None if it is not known.
    """
    items: dict[str, dict[str, Any]] = {}
    sets: dict[str, list[SetFacts]] = {}  # the splits of each set, each once
    for source in training_sources(runs):
        for name, split in source.sets.items():
            item = items.setdefault(name, {"name": name, "purpose": "training", "url": None})
            item["url"] = extract_address(source.published) or item["url"]
            if split not in sets.setdefault(name, []):
                sets[name].append(split)
    for name, splits in sets.items():
        clips, captions = sum(split.clips for split in splits), sum(split.captions for split in splits)
        items[name] |= {
            "has_audio": True,
            "has_captions": captions > 0,
            "nb_captions_per_audio": round(captions / clips, 2),
            "total_audio_length": round(60 * sum(split.hours for split in splits), 1),  # minutes
            "licences": dict(sum((Counter(split.licences) for split in splits), Counter())),
        }
    for one in (one for run in runs for one in networks(run) if one.name):
        purpose = "word_modelling" if one.part == "text" else "audio_modelling"
        known = {"licences": one.licence} if one.licence else {}
        items[str(one.name)] = {
            "name": one.name,
            "purpose": purpose,
            "url": one.url,
            "total_audio_length": None,
        } | known
    return items


def extract_address(published: str | None) -> str | None:
    """Return the web address that begins a text, if any."""
    found = re.match(r"(?:https?://)?([^\s(),;:/]+\.[^\s(),;]+)", published or "")
    return f"https://{found[1]}" if found else None


def loss_in_words(term: Mapping[str, Any]) -> str:
    """Return a loss as text, such as `ranking (margin 0.2)`."""
    settings = ", ".join(f"{key} {value}" for key, value in term.items() if key != "kind" and value is not None)
    return f"{term['kind']} ({settings})"


def _as_one(values: list[Any]) -> Any:
    """Return values as one: None, the only one, a text of several, or a list of several numbers."""
    if len(values) < 2:
        return values[0] if values else None
    return ", ".join(values) if all(isinstance(value, str) for value in values) else values
