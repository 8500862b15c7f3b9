"""The description of a submitted system, meta.yaml."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from submission.editions import RESULT, Edition
from submission.package.about import About, System
from submission.package.meta_model import DESCRIPTION, figure_keys
from submission.runs.entry import Entry
from submission.runs.record import SetFacts

OFFICIAL = frozenset({"castella", "clotho_moment"})  # training sets of 2026 that are not external


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

    Last name and institute of the corresponding author, task, and number of the system.
    """
    author = about.corresponding
    names = (re.sub(r"[\s._]+", "-", text) for text in (author.lastname, author.affiliation.abbreviation))
    return f"{'_'.join(names)}_task{edition.task}_{index}"


def make_meta(
    runs: Sequence[Entry], about: About, system: System, figures: Mapping[str, float], edition: Edition, label: str
) -> dict[str, Any]:
    """Return the content of meta.yaml.

    Args:
        figures: Metrics of the system, in [0, 1].
    """
    of_moments = edition.output == "windows"
    results = {
        key: round(100 * figures[metric], 2) if of_moments else round(figures[metric], 4)
        for metric, key in figure_keys(edition).items()
    }
    submission = {"label": label, "name": system.name, "abbreviation": system.abbreviation}
    return {
        "submission": submission | {"authors": [author.model_dump() for author in about.authors]},
        "system": _moments_block(runs, about) if of_moments else _clips_block(runs, about, system),
        "results": {RESULT: results},
    }


def _clips_block(runs: Sequence[Entry], about: About, system: System) -> dict[str, Any]:
    members = sum(len(run.members) for run in runs)
    return {
        "description": describe(runs) | system.description | {"ensemble": members if members > 1 else None},
        "complexity": {"total_parameters": system.parameters or sum(count_parameters(runs))},
        "external_datasets": list(_external_sources(runs, about)),
        "source_code": about.source_code,
    }


def _moments_block(runs: Sequence[Entry], about: About) -> dict[str, Any]:
    trained, frozen = count_parameters(runs)
    audio = [
        [one.name for one in networks(run) if one.part != "text" and one.name] or [run.recipe["model"]["audio"]["kind"]]
        for run in runs
    ]
    external = [
        {"name": item["name"], "url": item["url"]}
        | ({"licences": item["licences"]} if isinstance(item.get("licences"), str) else {})
        for item in _external_sources(runs, about)
        if item["name"] not in OFFICIAL and item["purpose"] != "other"
    ]
    return {
        "model": {
            "audio_models": list(dict.fromkeys(name for names in audio for name in names)),
            "text_models": list(dict.fromkeys(map(text_name, runs))),
            "LLMs": [],
            "trainable_parameters": _format_millions(trained),
            "freezed_parameters": _format_millions(frozen),
            "loss_function": list(dict.fromkeys(loss_in_words(t) for s in trained_stages(runs) for t in s["losses"])),
        },
        "dataset": {
            "data_augmentation": _augmentation(runs),
            "external_data_resources": external,
            "audio_captions": _count_pairs(runs),
        },
        "ensemble": sum(len(run.members) for run in runs) > 1,
        **({"source_code": about.source_code} if about.source_code else {}),
    }


def trained_stages(runs: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the settings of the stage of each trained model."""
    members = [(run, member["stage"]) for run in runs for member in run.members]
    return [run.recipe["stages"][stage] for run, stage in members if stage is not None]


def describe(runs: Sequence[Entry]) -> dict[str, Any]:
    """Return the block `description` of meta.yaml.

    None for what is not known.
    """
    experts = [expert for run in runs for expert in run.result.experts.values()]
    rates = sorted({expert.rate for expert in experts if expert.rate})
    models = [(run.recipe["model"]["audio"], run.recipe["model"]["text"]) for run in runs]
    stages = trained_stages(runs)
    optimizers = [stage["optimizer"] for stage in stages]
    monitored = {"last": "none (last checkpoint)", None: "none (no training)"}
    checkpoints = [member.get("checkpoint") for run in runs for member in run.members]
    return {
        "input_sampling_rate": _join_unique(f"{rate / 1000:g}kHz" for rate in rates),
        "acoustic_features": _join_unique(expert.kind for expert in experts if expert.rate),
        "acoustic_embeddings": _join_unique(
            one.name or "" for run in runs for one in networks(run) if one.part not in ("audio", "text")
        ),
        "data_augmentation": _augmentation(runs),
        "machine_learning_method": _join_unique(
            f"embeddings of {text['model']}" if audio["kind"] == "embeddings" else f"{audio['kind']}, {text['kind']}"
            for audio, text in models
        ),
        "learning_scheme": "supervised" if stages else None,
        "audio_modelling": _join_unique(audio["kind"] for audio, _ in models),
        "word_embeddings": _join_unique(map(text_name, runs)),
        "word_modelling": _join_unique(text["kind"] for _, text in models),
        "loss_function": _join_unique(loss_in_words(term) for stage in stages for term in stage["losses"]),
        "optimizer": _join_unique(optimizer["kind"] for optimizer in optimizers),
        "learning_rate": _value_or_list([optimizer["lr"] for optimizer in optimizers]),
        "weight_decay": _value_or_list([optimizer.get("weight_decay") for optimizer in optimizers]),
        "metric_monitored": _join_unique(monitored.get(name, f"validation {name}") for name in checkpoints),
    }


def missing_facts(runs: Sequence[Entry], about: About, number: int, edition: Edition) -> Iterator[str]:
    """Yield the facts that neither runs nor about.yaml have."""
    system, at = about.systems[number], f"systems.{number}"
    known = describe(runs)
    if edition.output != "windows":
        for key in system.description.keys() - known.keys():
            yield f"{at}.description.{key}: unknown key"
        for key in DESCRIPTION:
            if known[key] is None and key not in system.description:
                yield f"{at}.description.{key}: missing; write a value, for example none"
        if not system.parameters and not are_counted(runs):
            yield f"{at}.parameters: missing; write the number of parameters of all models"
    for name, address in external_addresses(runs).items():
        if address is None and name not in about.sources:
            yield f"sources.{name}.url: missing; write its address, or null if it is not published"


def networks(run: Entry) -> list[Network]:
    """Return the pre-trained models of a run."""
    result, model = run.result, run.recipe["model"]
    counts, licences = result.parameters.frozen, result.weight_licences
    found = [
        Network(expert.model, name, ", ".join(expert.published) or None, licences.get(name), counts.get(name, 0))
        for name, expert in result.experts.items()
        if name in counts or expert.pretrained
    ]
    text = model["text"].get("model") or model["text"].get("vectors")
    for part, path in (("audio", model["audio"].get("weights")), ("text", text)):
        if path or part in counts:
            name = Path(path).name if path else None
            found.append(Network(name, part, None, licences.get(part), counts.get(part, 0)))
    return found


def count_parameters(runs: Sequence[Entry]) -> tuple[int, int]:
    """Return the numbers of trained and frozen parameters.

    A frozen network of several models counts once.
    """
    members: set[tuple[object, ...]] = set()
    trained = 0
    for run in runs:
        new = {(run.folder.resolve(), one["stage"], one.get("checkpoint")) for one in run.members} - members
        trained += len(new) * sum(run.result.parameters.trained.values())
        members |= new
    counted = {(one.name or one.part, one.parameters) for run in runs for one in networks(run)}
    return trained, sum(count for _, count in counted)


def are_counted(runs: Sequence[Entry]) -> bool:
    """Return whether the runs have the parameters of every model.

    Embeddings from files may lack them.
    """
    given = [(run, name) for run in runs for name, expert in run.result.experts.items() if not expert.rate]
    return all(name in run.result.parameters.frozen for run, name in given) and sum(count_parameters(runs)) > 0


def text_name(run: Entry) -> str:
    """Return the name of the pre-trained text model, if any."""
    return next((one.name for one in networks(run) if one.part == "text" and one.name), "trained from scratch")


def _augmentation(runs: Sequence[Entry]) -> str | None:
    return "SpecAugment" if any(run.recipe["model"]["audio"].get("spec_augment") for run in runs) else None


def _external_sources(runs: Sequence[Entry], about: About) -> Iterator[dict[str, Any]]:
    """Yield the items of `external_datasets`.

    Training sets, pre-trained models, and other sources.
    """
    addresses = external_addresses(runs) | {name: address.url for name, address in about.sources.items()}
    sets = training_sets(runs)
    for name, parts in sets.items():
        clips, captions = sum(part.clips for part in parts), sum(part.captions for part in parts)
        licences: Counter[str] = sum((Counter(part.licences) for part in parts), Counter())
        yield {
            "name": name,
            "purpose": "training",
            "url": addresses[name],
            "has_audio": True,
            "has_captions": captions > 0,
            "nb_captions_per_audio": round(captions / clips, 2),
            "total_audio_length": round(60 * sum(part.hours for part in parts), 1),  # minutes
            "licences": dict(licences),
        }
    models = {one.name: one for run in runs for one in networks(run) if one.name}
    for name in [*models, *(name for name in about.sources if name not in models and name not in sets)]:
        part = models[name].part if name in models else None
        purpose = "other" if part is None else "word_modelling" if part == "text" else "audio_modelling"
        licence = {"licences": models[name].licence} if part and models[name].licence else {}
        yield {"name": name, "purpose": purpose, "url": addresses[name], "total_audio_length": None, **licence}


def external_addresses(runs: Sequence[Entry]) -> dict[str, str | None]:
    """Return the address of each external data set and model.

    It is None if it is not known.
    """
    addresses: dict[str, str | None] = {}
    for run in runs:
        for source in run.result.data.values():
            for name in source.sets if source.trains else ():
                addresses[name] = extract_address(source.published) or addresses.get(name)
        addresses |= {one.name: one.url for one in networks(run) if one.name}
    return addresses


def extract_address(published: str | None) -> str | None:
    """Return the web address that begins a text, if any."""
    first = re.match(r"(?:https?://)?[\w-]+(?:\.[\w-]+)+(?:/[^\s(),;]*)?", published or "")
    return None if first is None else first[0] if "://" in first[0] else f"https://{first[0]}"


def training_sets(runs: Sequence[Entry]) -> dict[str, list[SetFacts]]:
    """Return the splits of each training set, each once."""
    parts: dict[str, list[SetFacts]] = {}
    for run in runs:
        for source in run.result.data.values():
            for name, part in source.sets.items() if source.trains else ():
                if part not in parts.setdefault(name, []):
                    parts[name].append(part)
    return parts


def _count_pairs(runs: Sequence[Entry]) -> int:
    """Return the number of (text, recording) pairs for training."""
    counts: dict[str, int] = {}
    for run in runs:
        for source in run.result.data.values():
            captions = sum(part.captions for part in source.sets.values())
            count = captions if source.moments is None else source.moments
            if source.trains:
                counts[f"{sorted(str(part) for part in source.sets.values())}{count}"] = count
    return sum(counts.values())


def loss_in_words(term: Mapping[str, Any]) -> str:
    """Return a loss as text, such as `ranking (margin 0.2)`."""
    settings = ", ".join(f"{key} {value}" for key, value in term.items() if key != "kind" and value is not None)
    return f"{term['kind']} ({settings})"


def _format_millions(parameters: int) -> str:
    millions = parameters / 1e6
    return f"{millions:.0f} M" if millions >= 100 else f"{millions:.3g} M"


def _join_unique(values: Iterable[str]) -> str | None:
    return ", ".join(dict.fromkeys(values)) or None


def _value_or_list(values: list[Any]) -> Any:
    unique = list(dict.fromkeys(values))
    return unique if len(unique) > 1 else next(iter(unique), None)
