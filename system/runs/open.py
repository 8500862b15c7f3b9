"""Build and open models.

Build a model from a recipe, and open a trained model: the checkpoint of a run, or an exported model.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from data_tools.errors import KitError
from data_tools.files import read_json, require_unharmed
from data_tools.manifest import Clip
from data_tools.settings import read_shaped
from data_tools.words import vocabulary_of
from submission.runs.reading import finish_hint, read_result
from submission.runs.record import FittedScore, ModelFacts
from system.compute.device import device_of, memory_errors, moved
from system.models.base import excluded
from system.models.retrieval import RetrievalModel
from system.models.scores import MomentScore
from system.ranking.checkpoint import ByOneModel, RankBlind
from system.recipe import schema
from system.recipe.load import as_change, load_recipe
from system.runs.checkpoints import load_checkpoint, load_tensors, load_weights
from system.runs.folder import Run
from system.runs.provenance import require_unchanged_files

log = logging.getLogger(__name__)


def build_model(recipe: schema.Recipe, vocabulary: list[str]) -> RetrievalModel:
    """Build the model of a recipe with new weights, which are drawn from torch's random state."""
    with memory_errors("the model", "make the model's layers smaller, or use a machine with more memory"):
        return RetrievalModel(recipe.model, recipe.model.text.build(vocabulary, Path(recipe.banks)), recipe.learned)


def training_vocabulary(
    recipe: schema.Recipe, clips: Mapping[str, Sequence[Clip]], more: Sequence[str] = ()
) -> list[str]:
    """Return the vocabulary of a text encoder that is trained from scratch; an empty list for other text encoders.

    The vocabulary consists of the words of the training captions and of the texts `more`. If a stage starts from
    another model, the words of that model come first and in the same order, since the index of a word selects its
    vector. more: Texts that may replace captions during training.
    """
    if not recipe.model.text.reads_vocabulary:
        return []
    starts = {s.start_from.folder for s in recipe.stages.values() if isinstance(s.start_from, schema.FromModel)}
    if len(starts) > 1:
        models = ", ".join(sorted(starts))
        raise KitError(
            f"stages start from models with different vocabularies ({models}); set the same folder in each start_from"
        )
    recorded = [word for folder in starts for word in _read_words_of_model(Path(folder))]
    captions = (caption for source in recipe.trained_on for clip in clips[source] for caption in clip.captions)
    found = vocabulary_of([*captions, *more])
    return list(dict.fromkeys([*recorded, *found]))


PUBLISHED, GIVEN = "published weights", "given embeddings"  # texts in place of a checkpoint's name
EXPORT_AGAIN = "write the model again with lbar export"


def _read_model_json(folder: Path) -> ModelFacts:
    """Read model.json of an exported model, and verify the checksums of the model's files.

    Raises KitError if the folder is not an exported model, and DataError if a file is damaged.
    """
    if not (folder / "model.safetensors").exists():
        raise KitError(f"{folder} is not an exported model; make one with lbar export")
    facts = read_shaped(folder / "model.json", ModelFacts, EXPORT_AGAIN)
    for name, checksum in facts.sha256.items():
        require_unharmed(folder / name, checksum, EXPORT_AGAIN)
    return facts


def _read_words_of_model(folder: Path) -> list[str]:
    """Read the vocabulary of the exported model or run in `folder`."""
    if (folder / "resolved.json").exists():
        run = Run(folder)
        return _read_vocabulary(folder, run.repair_hint(run.vocabulary))
    _read_model_json(folder)
    return _read_vocabulary(folder, EXPORT_AGAIN)


def _read_vocabulary(folder: Path, hint: str) -> list[str]:
    """Read vocabulary.json of a folder; an empty list if the file is missing. hint: Cure, for the message."""
    path = folder / "vocabulary.json"
    words = read_json(path) if path.exists() else []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise KitError(f"{path} is damaged (it is not a list of words); {hint}")
    return words


@dataclass(frozen=True)
class Trained:
    """A model that is ready to rank. facts: Facts that are stored with its scores. folder: Folder of the model."""

    model: RetrievalModel
    recipe: schema.Recipe
    facts: ModelFacts
    folder: Path


def open_trained(
    folder: Path,
    stage: str | None = None,
    checkpoint: str | None = None,
    changes: list[str] | None = None,
    device: torch.device | None = None,
    banks: Path = Path("banks"),
) -> Trained:
    """Open the trained model of a run, or an exported model.

    Args:
        stage, checkpoint: Stage and checkpoint of a run. None: as in the run's first rank entry that uses one model;
            entries with metrics take precedence over entries of blind sets.
        changes: Changed settings, such as "model.audio.experts.NAME.weights=FILE". Only paths may change.
        device: Device of the model; None for this machine's default device.
        banks: Folder of frames for an exported model, instead of the recipe's `banks`. A change of `banks` in `changes`
            takes precedence.
    Raises: KitError for arguments that do not fit the folder, DataError for a missing or damaged file.
    """
    if (folder / "model.safetensors").exists():
        if stage or checkpoint:
            raise KitError(f"{folder} is an exported model with one checkpoint; leave out --stage and --checkpoint")
        return _open_exported(folder, [as_change("banks", str(banks)), *(changes or [])], device or device_of())
    if (folder / "resolved.json").exists():
        return _open_run(Run(folder), stage, checkpoint, changes or [], device or device_of())
    raise KitError(
        f"{folder} is neither a run (resolved.json) nor an exported model (model.safetensors); name such a folder"
    )


def score_of_windows(trained: Trained) -> MomentScore:
    """Return the module (MomentScore) that scores the frames of a recording, so that windows can be found.

    This module may differ from the trained module, which ranks clips. The scale, the offset, and the weights of moment
    starts and ends are either trained values or values fitted to known moments. The values fitted for the run's first
    rank entry of moments are used if the run is finished and the model is at the checkpoint of this entry. They are
    also used for a model that was exported with them. Otherwise the trained values are used, and a warning is logged if
    the entry has the setting `fit`.
    Raises ValueError for a model without a score of moments.
    """
    score, fitted = deepcopy(trained.model.moments), trained.facts.fitted
    name, entry = next(iter(trained.recipe.rank_moments.items()), ("", None))
    if fitted is None and entry is not None and entry.fit is not None:
        fitted = _read_fitted_score(trained, name, entry.fit)
        if fitted is None:
            hint = "open the finished run without --stage and --checkpoint, or rank this entry again"
            log.warning("rank entry %s is fitted to %s, but the opened model is not; %s", name, entry.fit, hint)
    if fitted is not None:
        numbers = {key: torch.tensor(value) for key, value in fitted if value is not None}
        score.load_state_dict(score.state_dict() | numbers)
    return score


def with_fit(trained: Trained) -> Trained:
    """Return the model to export; its metadata get the numbers that the first rank entry of moments has fitted."""
    name, entry = next(iter(trained.recipe.rank_moments.items()), ("", None))
    fitted = None if entry is None or entry.fit is None else _read_fitted_score(trained, name, entry.fit)
    return replace(trained, facts=trained.facts.model_copy(update={"fitted": fitted})) if fitted else trained


def _read_fitted_score(trained: Trained, name: str, source: str) -> FittedScore | None:
    """Read the fitted numbers (scale, offset, ...) of the rank entry `name` from the run's result; None if missing.

    trained: The opened model. source: Data source to whose moments the score was fitted.
    Returns: None if the run is not finished, if it has no such entry, or if the entry ranked another checkpoint than
    that of `trained`.
    """
    is_finished = (trained.folder / "result.json").exists()
    found = read_result(trained.folder).moments.get(name) if is_finished else None
    is_same = found is not None and found.checkpoint == describe_fit(trained.facts.checkpoint, source)
    return found.fitted if found is not None and is_same else None


def describe_fit(checkpoint: str, source: str) -> str:
    """Describe a checkpoint whose score was fitted, after training, to the moments of the data source `source`."""
    return f"{checkpoint}, fitted to {source}"


def _open_run(run: Run, stage: str | None, checkpoint: str | None, changes: list[str], device: torch.device) -> Trained:
    """Open the model of a run at a checkpoint of a stage.

    stage: None: the stage of the first rank entry by one model, or else the last stage. Entries of blind sets come last
    in this choice. checkpoint: None: the checkpoint of this entry if the entry uses the stage, or else `last`.
    """
    if not run.vocabulary.exists():
        raise KitError(f"{run.folder} has not been trained yet; {finish_hint(run.folder)}")
    provenance = run.read_provenance()  # refuses a damaged resolved.json before it is read
    recipe = _load_with_paths(run.folder / "resolved.json", [*_path_changes(run, provenance.started_in), *changes])
    single = [entry for entry in recipe.rank.values() if isinstance(entry, ByOneModel)]
    first = min(single, key=lambda entry: isinstance(entry, RankBlind), default=None)
    if stage is None and first is not None:
        stage = first.stage
    elif stage is None and recipe.stages:
        stage = list(recipe.stages)[-1]
    if stage is not None and stage not in recipe.stages:
        raise KitError(
            f"{run.folder} has no stage {stage!r}; name one of its stages: {', '.join(recipe.stages) or 'none'}"
        )
    if stage is None and recipe.model.first_unpublished_encoder:
        teachers = ", ".join(str(schema.teacher_path(teacher) or name) for name, teacher in recipe.teachers.items())
        cure = f"name one of the recipe's teachers ({teachers}) instead" if teachers else "name a run with stages"
        raise KitError(f"{run.folder} has no trained model, since its recipe has no stages; {cure}")
    checkpoint = checkpoint or (first.checkpoint if first and first.stage == stage else "last")
    model = moved(build_model(recipe, _read_vocabulary(run.folder, run.repair_hint(run.vocabulary))), device)
    experts = with_trained_versions(run.folder, provenance.experts, expert_identities(recipe))
    require_unchanged_files(run, {"experts": experts, "text": model.text.identity()})
    if stage is None:
        model.audio.load_pretrained()
    taken = (
        untrained_origin(recipe) if stage is None else load_checkpoint(model, run.folder / stage, checkpoint or "last")
    )
    return Trained(model, recipe, model_facts(run, model, recipe, taken), run.folder)


def untrained_origin(recipe: schema.Recipe) -> str:
    """Describe where the weights of a model without training are from: published weights or given embeddings."""
    return PUBLISHED if recipe.model.audio.reads_clips else GIVEN


def _path_changes(run: Run, started_in: str | None) -> list[str]:
    """Return changes KEY=PATH that make those paths absolute that exist only in `started_in`, where the run began."""
    if started_in is None:
        return []
    recipe = load_recipe(run.folder / "resolved.json").recipe
    audio, text = recipe.model.audio, recipe.model.text
    named = {f"model.audio.{name}": attrgetter(name)(audio) for name in audio.file_settings}
    named |= {f"model.text.{name}": getattr(text, name) for name in text.file_settings}
    for expert_name, expert in audio.experts.items() if "experts" in type(audio).model_fields else ():
        named |= {f"model.audio.experts.{expert_name}.{name}": getattr(expert, name) for name in expert.weight_files()}
    named["banks"] = recipe.banks
    lists = {key: value for key, value in named.items() if isinstance(value, list)}
    paths = {key: value for key, value in named.items() if isinstance(value, str)}
    paths |= {f"{key}.{number}": one for key, value in lists.items() for number, one in enumerate(value)}
    found = {key: existing_path(run, value) for key, value in paths.items()}
    return [as_change(key, str(path.resolve())) for key, path in found.items() if path != Path(paths[key])]


def existing_path(run: Run, name: str) -> Path:
    """Return the path of a file that a run's recipe names, even if the run was started in another folder.

    name: The path in the recipe. A relative path is looked up in the working directory, and then in the folder where
    the run was started.
    """
    path, started_in = Path(name), run.read_provenance().started_in
    if started_in is None or path.is_absolute() or path.exists():
        return path
    moved = run.folder.resolve() / started_in / path
    return moved if moved.exists() else path


def _load_with_paths(path: Path, changes: list[str]) -> schema.Recipe:
    """Load a recipe with changed paths. Raises KitError if the changes affect any other setting of the model."""
    recipe = load_recipe(path, changes).recipe
    if _trained_settings(recipe) != _trained_settings(load_recipe(path).recipe):
        parts = {"audio": recipe.model.audio, "text": recipe.model.text}
        files = [f"model.{part}.{name}" for part, settings in parts.items() for name in sorted(settings.file_settings)]
        free = ", ".join([*files, "banks"])
        raise KitError(
            f"--set {' '.join(changes)}: a trained model's settings are fixed; change only the paths {free} and the "
            "experts' weights"
        )
    return recipe


def _trained_settings(recipe: schema.Recipe) -> dict[str, Any]:
    """Return the settings of the model that determine its weights; paths are left out."""
    audio, text = recipe.model.audio, recipe.model.text
    files = {"audio": excluded({"experts", *audio.file_settings}), "text": set(text.file_settings)}
    experts = {name: expert.model_dump(exclude=set(expert.weight_files())) for name, expert in audio.experts.items()}
    return recipe.model.model_dump(exclude=files) | {"experts": experts}


def model_facts(run: Run, model: RetrievalModel, recipe: schema.Recipe, checkpoint: str) -> ModelFacts:
    """Return metadata of a run's model (recipe, checkpoint, ...), stored with its scores and exported weights."""
    editions = {str(entry.edition) for entry in recipe.rank.values()}
    return ModelFacts(
        recipe=recipe.name,
        seed=recipe.seed,
        run=run.folder.name,
        checkpoint=checkpoint,
        edition=editions.pop() if len(editions) == 1 else None,
        commits=run.read_provenance().commits,
        experts=expert_identities(recipe),
        text=model.text.identity(),
    )


def expert_identities(recipe: schema.Recipe) -> dict[str, dict[str, Any]]:
    """Return a dict from the name of each expert to everything that determines the expert's frames."""
    return {name: expert.identity() for name, expert in recipe.model.audio.experts.items()}


def with_trained_versions(folder: Path, recorded: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the experts' identities `current`, but with the versions at training, which are in `recorded`.

    An identity is everything that determines an expert's frames: settings, version, and checksums of weights.
    recorded: Identities of the experts in training. A warning is logged for each expert whose version has changed.
    folder: Folder of the model, for the warning.
    """
    taken: dict[str, Any] = json.loads(json.dumps(current))
    for name in recorded.keys() & taken.keys():
        version = recorded[name].get("version")
        if version != taken[name]["version"]:
            log.warning(
                "%s was trained on frames of version %s of the expert %s, but frames are now computed by version %s; "
                "scores may change slightly", folder, version, name, taken[name]["version"],
            )  # fmt: skip
            taken[name]["version"] = version
    return taken


def _open_exported(folder: Path, changes: list[str], device: torch.device) -> Trained:
    """Open the exported model in `folder`. changes: Changed paths, such as "banks=FOLDER"."""
    facts = _read_model_json(folder)
    if (folder / "text").is_dir():  # the exported sentence encoder, even if the folder was moved
        changes = [as_change("model.text.model", str((folder / "text").resolve())), *changes]
    if (folder / "audio").is_dir():
        changes = [as_change("model.audio.network.weights", str((folder / "audio").resolve())), *changes]
    recipe = _load_with_paths(folder / "recipe.json", changes)
    current = expert_identities(recipe)
    for name, identity in with_trained_versions(folder, facts.experts, current).items():
        if identity != facts.experts.get(name):
            raise KitError(
                f"{folder} was trained with other weights of the expert {name} (see model.json); "
                f"name the weight file of the training with --set model.audio.experts.{name}.weights=FILE"
            )
    model = moved(build_model(recipe, _read_vocabulary(folder, EXPORT_AGAIN)), device)
    files = recipe.model.text.weight_files()
    if files and model.text.identity() != facts.text:
        options = " ".join(f"--set model.text.{name}=FILE" for name in files)
        raise KitError(
            f"{folder} was trained with another file of model.text.{' and '.join(files)} (model.json has the checksum "
            f"of that file); name the file of the training with {options}"
        )
    load_weights(model, folder / "model.safetensors", EXPORT_AGAIN)
    noted = facts.model_dump(by_alias=True, exclude_unset=True, exclude={"sha256"})
    return Trained(model, recipe, ModelFacts.model_validate(noted | {"experts": current}), folder)


def load_start_weights(model: RetrievalModel, start: schema.FromModel, banks: Path) -> None:
    """Load the weights of a finished run or an exported model into `model`, which has the same layers.

    Words of `model` that the other model does not know keep their vectors. Raises KitError if the other model's words
    are not the first words of `model`.
    """
    folder = Path(start.folder)
    words = _read_words_of_model(folder)
    known = model.text.vocabulary
    if known is not None and known[: len(words)] != words:
        raise KitError(f"the vocabulary of the model {folder} has changed since this run began; start a new run")
    if (folder / "model.safetensors").exists():
        load_weights(model, folder / "model.safetensors", EXPORT_AGAIN)
        return
    other = open_trained(folder, start.stage, start.checkpoint, device=torch.device("cpu"), banks=banks).model
    load_tensors(model, other.state_dict(), folder)
