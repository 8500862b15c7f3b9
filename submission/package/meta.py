"""Write meta.yaml.

Make meta.yaml, the description of a submitted system, from its runs and from the participant's about.yaml.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from submission.editions import AnyEdition, Edition
from submission.formats.score_matrix import ScoreMatrix
from submission.metrics.scoring import summarise_matrix
from submission.package.about import About, System
from submission.package.meta_model import Description, figure_keys
from submission.runs.finished import Finished, FinishedRun
from submission.runs.recipe import LossSettings, StageSettings
from submission.runs.record import SetFacts


def system_label(about: About, edition: AnyEdition, index: int) -> str:
    """Return a system's label: last name and institute of the corresponding author, task, and number of the system.

    Blanks, dots and underscores in the names become hyphens, because these characters separate the parts of file names.
    """
    author = about.corresponding
    lastname, institute = (_label_part(text) for text in (author.lastname, author.affiliation.abbreviation))
    return f"{lastname}_{institute}_task{edition.task}_{index}"


def _label_part(text: str) -> str:
    """Return a name as part of a system's label: blanks, dots and underscores become hyphens."""
    return re.sub(r"[\s._]+", "-", text).strip("-")


def label_problems(about: About) -> Iterator[str]:
    """Yield a message if the corresponding author's last name or institute cannot be part of a system's label.

    Labels are names of folders and files.
    """
    author = about.corresponding
    for key, text in (("lastname", author.lastname), ("affiliation.abbreviation", author.affiliation.abbreviation)):
        if not re.fullmatch(r"\w[\w'’-]*", _label_part(text)):
            at = f"authors.{about.authors.index(author)}.{key}"
            yield f"{at}: {text!r} cannot be part of a file name; use letters, digits and hyphens"


def missing_addresses(runs: Sequence[Finished], described: Collection[str] = ()) -> list[str]:
    """Return the data sets and pre-trained models whose address is neither in the runs nor in `described`."""
    return [name for name, known in external_addresses(runs).items() if known is None and name not in described]


def make_meta(
    runs: Sequence[FinishedRun], about: About, system: System, scored: ScoreMatrix, edition: Edition, label: str
) -> dict[str, Any]:
    """Return the content of meta.yaml for a system that ranks clips; keys that do not apply are null.

    Args:
        runs: The run of the system, or all runs of a blend.
        system: The participant's facts about the system.
        scored: Score matrix for the results.
        label: Label of the system.

    Numbers of parameters are those of all models of the system; frozen experts are counted once. Lengths are in
    minutes, as in DCASE's templates.
    Sources: those that submission/editions.py states in the attribute `sources` of each edition.
    """
    members = count_members(runs)
    summary = summarise_matrix(scored, edition)
    return {
        "submission": submission_block(about, system, label),
        "system": {
            "description": describe(runs) | system.description | {"ensemble": members if members > 1 else None},
            "complexity": {"total_parameters": system.parameters or sum(count_parameters(runs))},
            "external_datasets": list(_external_sources(runs, about)),
            "source_code": about.source_code,
        },
        "results": {
            edition.result: {key: round(summary.values[metric], 4) for metric, key in figure_keys(edition).items()}
        },
    }


def submission_block(about: About, system: System, label: str) -> dict[str, Any]:
    """Return the block `submission` of meta.yaml, which is the same in all years."""
    return {
        "label": label,
        "name": system.name,
        "abbreviation": system.abbreviation,
        "authors": [author.model_dump() for author in about.authors],
    }


def count_members(runs: Sequence[Finished]) -> int:
    """Return the number of models that a system combines, added over its runs."""
    return sum(len(run.members) for run in runs)


def trained_stages(runs: Sequence[Finished]) -> list[StageSettings]:
    """Return, for each trained model of the runs, the settings of the stage that its ranked checkpoint is from."""
    members = [(run, member.stage) for run in runs for member in run.members]
    return [run.recipe.stages[stage] for run, stage in members if stage is not None]


def augmentation_of(runs: Sequence[Finished]) -> str | None:
    """Return the text `SpecAugment` if any run uses this augmentation in training, else None."""
    return "SpecAugment" if any(run.recipe.model.audio.spec_augment for run in runs) else None


def missing_descriptions(runs: Sequence[Finished]) -> list[str]:
    """Return the required keys of the block `description` of meta.yaml whose values are not in the runs.

    For example, a system without training has no loss. Systems that find moments need no such keys.
    """
    known = describe(runs)
    return [key for key in Description.model_fields if key in known and known[key] in (None, [])]


def describe(systems: Sequence[Finished]) -> dict[str, Any]:
    """Return the block `description` of meta.yaml from all runs of a system; {} for a system that finds moments."""
    runs = [run for run in systems if isinstance(run, FinishedRun)]
    if len(runs) < len(systems):
        return {}
    experts = [expert for run in runs for expert in run.result.experts.values()]
    rates = sorted({expert.rate for expert in experts if expert.rate})
    frozen = [run.result.experts[name].model for run in runs for name in frozen_experts(run)]
    models = [run.recipe.model for run in runs]
    stages = trained_stages(runs)
    optimizers = [stage.optimizer for stage in stages]
    return {
        "input_sampling_rate": _join_unique(f"{rate / 1000:g}kHz" for rate in rates),
        "acoustic_features": _join_unique(expert.kind for expert in experts if expert.rate),
        "acoustic_embeddings": _join_unique(frozen),
        "data_augmentation": augmentation_of(runs),
        "machine_learning_method": _join_unique(
            f"embeddings of {m.text.model}" if m.audio.kind == "embeddings" else f"{m.audio.kind}, {m.text.kind}"
            for m in models
        ),
        "learning_scheme": "supervised" if stages else None,
        "audio_modelling": _join_unique(model.audio.kind for model in models),
        "word_embeddings": _join_unique(map(text_name, runs)),
        "word_modelling": _join_unique(model.text.kind for model in models),
        "loss_function": _join_unique(loss_in_words(term) for stage in stages for term in stage.losses),
        "optimizer": _join_unique(optimizer.kind for optimizer in optimizers),
        "learning_rate": _value_or_list([optimizer.lr for optimizer in optimizers]),
        "weight_decay": _value_or_list([optimizer.weight_decay for optimizer in optimizers]),
        "metric_monitored": _join_unique(
            {"last": "none (last checkpoint)", None: "none (no training)"}.get(
                member.checkpoint, f"validation {member.checkpoint}"
            )
            for run in runs
            for member in run.members
        ),
    }


def _join_unique(values: Iterable[str]) -> str | None:
    """Join the different values with ", " in their order; None if there are no values."""
    return ", ".join(dict.fromkeys(values)) or None


def _value_or_list(values: list[Any]) -> Any:
    """Return the list of different values; only the value itself if all are equal, and None for an empty list."""
    unique = list(dict.fromkeys(values))
    return unique if len(unique) > 1 else next(iter(unique), None)


def count_parameters(runs: Sequence[Finished]) -> tuple[int, int]:
    """Return the number of trained parameters of all models, and the number of frozen parameters.

    A frozen network that several models use is counted once. Adapters are not counted, because they are added to the
    weights of a frozen network.
    """
    members: set[tuple[object, ...]] = set()
    trained = 0
    for run in runs:
        parts = run.result.parameters.trained.items()
        new = {(run.folder.resolve(), member.stage, member.checkpoint) for member in run.members} - members
        trained += len(new) * sum(count for part, count in parts if not part.endswith(" adapters"))
        members |= new
    frozen: set[tuple[str, int]] = set()
    for run in runs:
        kinds = {name: expert.model for name, expert in run.result.experts.items()}
        kinds |= {"audio": audio_name(run) or "audio", "text": text_name(run)}
        frozen |= {(kinds[name], count) for name, count in run.result.parameters.frozen.items()}
    return trained, sum(count for _, count in frozen)


def are_counted(runs: Sequence[Finished]) -> bool:
    """Return whether the runs have the parameter count of every model; embeddings from files may lack it."""
    given = [(run, name) for run in runs for name, expert in run.result.experts.items() if not expert.rate]
    counted = all(name in run.result.parameters.frozen for run, name in given)
    return counted and sum(count_parameters(runs)) > 0


def frozen_experts(run: Finished) -> list[str]:
    """Return the names of the run's experts (frozen audio models) that are pre-trained."""
    frozen = run.result.parameters.frozen
    return [name for name, expert in run.result.experts.items() if name in frozen or expert.pretrained]


def text_name(run: Finished) -> str:
    """Return the name of a run's pre-trained text model or word vectors, or `trained from scratch`."""
    return _pretrained_text(run) or "trained from scratch"


def _pretrained_text(run: Finished) -> str | None:
    """Return the name of a run's pre-trained text model or word vectors; None if the run has neither."""
    text = run.recipe.model.text
    return Path(text.model or text.vectors or "").name or None


def audio_name(run: Finished) -> str | None:
    """Return the file name of the published weights that initialise a run's audio encoder; None without weights."""
    weights = run.recipe.model.audio.weights
    return None if weights is None else Path(weights).name


def _external_sources(runs: Sequence[FinishedRun], about: About) -> Iterator[dict[str, Any]]:
    """Yield the items of `external_datasets` in meta.yaml: training sets, pre-trained models, and other sources.

    The other sources are those that only the participant names in about.yaml, such as the model of a judge.
    """
    addresses = external_addresses(runs) | {name: address.url for name, address in about.sources.items()}
    for name, parts in training_sets(runs).items():
        clips, captions = sum(part.clips for part in parts), sum(part.captions for part in parts)
        licences: Counter[str] = sum((Counter(part.licences) for part in parts), Counter())
        yield {
            "name": name,
            "purpose": "training",
            "url": addresses[name],
            "has_audio": True,
            "has_captions": captions > 0,
            "nb_captions_per_audio": round(captions / clips, 2),
            "total_audio_length": round(60 * sum(part.hours for part in parts), 1),
            "licences": dict(licences),
        }
    audio = [run.result.experts[name].model for run in runs for name in frozen_experts(run)]
    audio += filter(None, map(audio_name, runs))
    purposes = dict.fromkeys(audio, "audio_modelling")
    purposes |= dict.fromkeys(filter(None, map(_pretrained_text, runs)), "word_modelling")
    recorded = weight_licences(runs)
    for name, purpose in purposes.items():
        licence = {"licences": recorded[name]} if name in recorded else {}
        yield {"name": name, "purpose": purpose, "url": addresses[name], "total_audio_length": None, **licence}
    for name in [name for name in about.sources if name not in {**training_sets(runs), **purposes}]:
        yield {"name": name, "purpose": "other", "url": addresses[name], "total_audio_length": None}


def weight_licences(runs: Sequence[Finished]) -> dict[str, str]:
    """Return a dict from pre-trained audio model to the licence of its weights, if a run records the licence."""
    licences: dict[str, str] = {}
    for run in runs:
        names = {name: run.result.experts[name].model for name in frozen_experts(run)} | {"audio": audio_name(run)}
        recorded = run.result.weight_licences
        licences |= {model: recorded[name] for name, model in names.items() if model and name in recorded}
    return licences


def external_addresses(runs: Sequence[Finished]) -> dict[str, str | None]:
    """Return a dict from the name of each external data set and pre-trained model to its address; None if unknown."""
    addresses: dict[str, str | None] = {}
    for run in runs:
        for source in run.result.data.values():
            for name in source.sets if source.trains else ():
                addresses[name] = extract_address(source.published) or addresses.get(name)
        for name in frozen_experts(run):
            expert = run.result.experts[name]
            addresses[expert.model] = ", ".join(expert.published) or None
        addresses |= dict.fromkeys(filter(None, (audio_name(run), _pretrained_text(run))))
    return addresses


def extract_address(published: str | None) -> str | None:
    """Return the web address at the beginning of a recipe's `published` text; None if there is no address."""
    first = re.match(r"(?:https?://)?[\w-]+(?:\.[\w-]+)+(?:/[^\s(),;]*)?", published or "")
    return None if first is None else first[0] if "://" in first[0] else f"https://{first[0]}"


def training_sets(runs: Sequence[Finished]) -> dict[str, list[SetFacts]]:
    """Return a dict from each data set in the training data to its splits; a split of several runs occurs once."""
    parts: dict[str, list[SetFacts]] = {}
    for run in runs:
        for source in run.result.data.values():
            for name, part in source.sets.items() if source.trains else ():
                if part not in parts.setdefault(name, []):
                    parts[name].append(part)
    return parts


def loss_in_words(term: LossSettings) -> str:
    """Return a loss and its settings as text, e.g. `ranking (weight 1, margin 0.2, relax none)`."""
    settings = {key: value for key, value in term.document().items() if key != "kind" and value is not None}
    return f"{term.kind} ({', '.join(f'{key} {value}' for key, value in settings.items())})"
