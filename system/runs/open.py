"""Build models, and open trained and published ones."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from data_tools.classify.model_files import config_of, local_folder
from data_tools.errors import KitError
from data_tools.files import read_json
from data_tools.manifest import Clip
from data_tools.settings import read_shaped
from data_tools.words import vocabulary_of
from submission.runs.record import FittedScore, Record, finish_hint
from system.devices import device_of, memory_errors, moved
from system.models.retrieval import RetrievalModel
from system.models.settings import Model, how_to_fetch, published_model_settings
from system.ranking.entries import ByOneModel, RankBlind
from system.recipe import schema
from system.recipe.load import SUFFIXES, as_change, differing, load_recipe
from system.recipe.rules import below
from system.runs.checkpoints import load_checkpoint, load_tensors, load_weights
from system.runs.folder import Run

PATHS = {"banks", "weights", "pca_weights", "model", "vectors"}  # keys of paths and of their lists
PATHS |= {"files", "queries", "blind_files", "blind_queries"}
PUBLISHED, GIVEN = "published weights", "given embeddings"  # texts in place of a checkpoint's name
log = logging.getLogger(__name__)


class ModelFacts(Record):
    """Facts about a model, stored with its scores and exports.

    Attributes:
        run: Name of the folder of its run.
        edition: Edition for which its recipe ranks; None if there are several.
        fitted: Fitted numbers of the score that finds moments, in an exported model whose score was fitted.
    """

    recipe: str
    seed: int | None = None
    run: Annotated[str | None, Field(alias="from")] = None
    checkpoint: str
    edition: str | None = None
    fitted: FittedScore | None = None
    commits: list[str] = Field(default_factory=list)
    experts: dict[str, dict[str, Any]]
    text: str | None


@dataclass(frozen=True)
class Trained:
    """A model that is ready to rank."""

    model: RetrievalModel
    recipe: schema.Recipe
    facts: ModelFacts  # stored with its scores
    folder: Path


def build_model(
    recipe: schema.Recipe, vocabulary: list[str], device: torch.device | str = "cpu", published: bool = False
) -> RetrievalModel:
    """Build a recipe's model with new weights.

    The weights are drawn from torch's random state.

    Args:
        published: Give networks their published weights, if the recipe names some.
    """
    with memory_errors("the model", "make the model's layers smaller, or use a machine with more memory"):
        text = recipe.model.text.build(vocabulary, Path(recipe.banks))
        model = moved(RetrievalModel(recipe.model, text, recipe.learned), device)
    if published and recipe.model.audio.needs():
        model.audio.load_pretrained()
    return model


def training_vocabulary(
    recipe: schema.Recipe, clips: Mapping[str, Sequence[Clip]], more: Sequence[str] = ()
) -> list[str]:
    """Return the words of a text encoder from scratch.

    There are none for another encoder. The words of a model that a stage starts from come first, since the index of a
    word selects its vector.

    Args:
        clips: Of each data source.
        more: Texts that training may use besides captions.
    """
    if not recipe.model.text.reads_vocabulary:
        return []
    starts = {s.start_from.folder for s in recipe.stages.values() if isinstance(s.start_from, schema.FromModel)}
    if len(starts) > 1:
        models = ", ".join(sorted(starts))
        raise KitError(f"stages start from models with different vocabularies ({models}); name one model")
    known = [word for folder in starts for word in read_vocabulary(Path(folder))]
    captions = (caption for source in recipe.trained_on for clip in clips[source] for caption in clip.captions)
    return list(dict.fromkeys([*known, *vocabulary_of([*captions, *more])]))


def read_vocabulary(folder: Path) -> list[str]:
    """Read the words of a run or an exported model."""
    path = folder / "vocabulary.json"
    words: list[str] = read_json(path) if path.exists() else []
    return words


def open_trained(
    name: Path,
    stage: str | None = None,
    checkpoint: str | None = None,
    changes: Sequence[str] = (),
    device: torch.device | None = None,
    banks: Path = Path("banks"),
) -> Trained:
    """Open a model, without a download or a manifest.

    It is a run (RUN, or RUN:ENTRY for the checkpoint of a rank entry), an exported model, a recipe without stages, or a
    hub model by its name or folder.

    Args:
        stage, checkpoint: Of a run. None: as in its first rank entry by one model, entries of blind sets last.
        changes: Changed settings, such as "model.audio.experts.NAME.weights=FILE"; of a trained model only paths.
        device: None: the machine's default.
        banks: Folder of frames for a model that is no run.
    """
    device, changes = device or device_of(), list(changes)
    folder, _, entry = str(name).rpartition(":")
    for run, ranked in (folder, entry), (name, ""):
        if run and (Path(run) / "resolved.json").exists():
            return _open_run(Run(Path(run)), ranked, stage, checkpoint, changes, device)
    changed_banks = [as_change("banks", str(banks)), *changes]
    if (exported := local_folder(str(name), "model")) and (exported / "model.json").exists():
        return _open_exported(exported, changed_banks, device)
    if name.suffix in SUFFIXES and not name.is_dir():
        recipe = load_recipe(name, changed_banks).recipe
        if recipe.stages or recipe.model.first_unpublished_encoder:
            raise KitError(f"{name} must be trained first, with lbar run; then name the run's folder")
        return _untrained(name, recipe, device)
    if changes:
        raise KitError(f"--set {changes[0]}: {name} has no settings; write a recipe with model.kind published instead")
    if config_of(str(name), "model") is None:
        raise KitError(
            f"{name} is not on this machine, as a run, an exported model, a recipe or a model of the hub; "
            f"correct the name, or {how_to_fetch(str(name))}"
        )
    settings = Model.model_validate(published_model_settings(str(name)))
    recipe = schema.Recipe.model_construct(
        name=str(name), seed=1, banks=str(banks), data={}, model=settings, stages={}, rank={}, teachers={}
    )
    return _untrained(name, recipe, device)


def _open_run(
    run: Run, entry: str, stage: str | None, checkpoint: str | None, changes: list[str], device: torch.device
) -> Trained:
    folder = run.folder
    if not run.vocabulary.exists():
        raise KitError(f"{folder} has not been trained yet; {finish_hint(folder)}")
    noted = run.read_provenance()
    recipe = _load_with_paths(run.resolved, changes, folder.resolve() / noted.started_in)
    single = {name: one for name, one in recipe.rank.items() if isinstance(one, ByOneModel)}
    if entry and entry not in single:
        raise KitError(
            f"{folder} has no rank entry {entry!r} by one model; such entries: {', '.join(single) or 'none'}"
        )
    first = single[entry] if entry else min(single.values(), key=lambda one: isinstance(one, RankBlind), default=None)
    if entry:  # it decides how windows are found, too
        recipe = recipe.model_copy(update={"rank": {entry: first, **recipe.rank}})
    if stage is None:
        stage = first.stage if first else next(reversed(recipe.stages), None)
    if stage is not None and stage not in recipe.stages:
        raise KitError(f"{folder} has no stage {stage!r}; its stages: {', '.join(recipe.stages) or 'none'}")
    if stage is None and recipe.model.first_unpublished_encoder:
        other = ", ".join(map(str, recipe.other_models.values())) or "another run"
        raise KitError(f"{folder} has no trained model, since its recipe has no stages; name {other}")
    if checkpoint is None and first and first.stage == stage:
        checkpoint = first.checkpoint
    model = build_model(recipe, read_vocabulary(folder), device, published=stage is None)
    experts = {key.removeprefix("experts."): one for key, one in noted.inputs.items() if key.startswith("experts.")}
    _require_same_files(folder, experts, noted.inputs["text"], recipe, model)
    taken = load_checkpoint(model, folder / stage, checkpoint or "last") if stage else untrained_origin(recipe)
    return Trained(model, recipe, model_facts(model, recipe, taken, run), folder)


def _open_exported(folder: Path, changes: list[str], device: torch.device) -> Trained:
    facts = read_shaped(folder / "model.json", ModelFacts, "write the model again with lbar export")
    # the exported encoders, even if the folder was moved
    for part, setting in (("text", "text.model"), ("audio", "audio.network.weights")):
        if (folder / part).is_dir():
            changes = [as_change(f"model.{setting}", str((folder / part).resolve())), *changes]
    recipe = _load_with_paths(folder / "recipe.json", changes)
    model = build_model(recipe, read_vocabulary(folder), device)
    text = facts.text if recipe.model.text.weight_files() else None
    _require_same_files(folder, facts.experts, text, recipe, model)
    load_weights(model, folder / "model.safetensors")
    return Trained(model, recipe, facts.model_copy(update={"experts": expert_identities(recipe)}), folder)


def _untrained(name: Path, recipe: schema.Recipe, device: torch.device) -> Trained:
    """Build a model with its published weights."""
    model = build_model(recipe, [], device, published=True)
    return Trained(model, recipe, model_facts(model, recipe, untrained_origin(recipe)), name)


def untrained_origin(recipe: schema.Recipe) -> str:
    """Describe the weights of a model without training."""
    return PUBLISHED if recipe.model.audio.reads_clips else GIVEN


def model_facts(model: RetrievalModel, recipe: schema.Recipe, checkpoint: str, run: Run | None = None) -> ModelFacts:
    """Return the facts about a model, and about its run."""
    experts, text = expert_identities(recipe), model.text.identity()
    facts: dict[str, Any] = {"recipe": recipe.name, "checkpoint": checkpoint, "experts": experts, "text": text}
    if run:
        editions = {str(entry.edition) for entry in recipe.rank.values()}
        facts |= {"edition": editions.pop() if len(editions) == 1 else None, "seed": recipe.seed}
        facts |= {"run": run.folder.name, "commits": run.read_provenance().commits}
        if fitted := _read_fitted(run, recipe, checkpoint):
            facts["fitted"] = fitted
    return ModelFacts.model_validate(facts)


def expert_identities(recipe: schema.Recipe) -> dict[str, dict[str, Any]]:
    """Return all that determines the frames of each expert."""
    return {name: expert.identity() for name, expert in recipe.model.audio.experts.items()}


def _require_same_files(
    folder: Path, experts: Mapping[str, Any], text: str | None, recipe: schema.Recipe, model: RetrievalModel
) -> None:
    """Refuse other weights of experts and text than in training.

    Another version of an expert's frames is only warned about.
    """
    for name, now in expert_identities(recipe).items():
        for key, before, found in differing(experts.get(name, {}), json.loads(json.dumps(now))):
            if key != "version":
                raise KitError(
                    f"{folder} was trained with another {key} of the expert {name}; name the file of the training with "
                    f"--set model.audio.experts.{name}.weights=FILE"
                )
            log.warning(
                "%s was trained on frames of version %s of the expert %s, but frames are now computed by version %s; "
                "scores may change slightly", folder, before, name, found,
            )  # fmt: skip
    if text is not None and model.text.identity() != text:
        options = " ".join(f"--set model.text.{need.setting}=FILE" for need in recipe.model.text.needs())
        raise KitError(f"{folder} was trained with another file of model.text; name it with {options}")


def _read_fitted(run: Run, recipe: schema.Recipe, checkpoint: str) -> FittedScore | None:
    """Read what a finished run's first entry of moments has fitted.

    Numbers of another checkpoint do not count.
    """
    name, entry = next(iter(recipe.rank_moments.items()), ("", None))
    if entry is None or entry.fit is None or not run.result.exists():
        return None
    found = run.read_result().moments.get(name)
    return found.fitted if found and found.checkpoint == describe_fit(checkpoint, entry.fit) else None


def describe_fit(checkpoint: str, source: str) -> str:
    """Describe a checkpoint that was fitted to a source's moments."""
    return f"{checkpoint}, fitted to {source}"


def _load_with_paths(path: Path, changes: list[str], base: Path = Path()) -> schema.Recipe:
    """Load a trained model's recipe with other paths.

    Args:
        base: Folder in which the run began; a relative path that exists only there is read there.
    """
    before = load_recipe(path).recipe
    written = {"banks": before.banks, "model": before.model.model_dump(mode="json")}
    for keys, value in below(written):
        is_path = isinstance(value, str) and not PATHS.isdisjoint(keys[-2:])
        if is_path and not Path(value).exists() and (base / value).exists():
            changes = [as_change(".".join(map(str, keys)), str((base / value).resolve())), *changes]
    recipe = load_recipe(path, changes).recipe
    found = differing(written["model"], recipe.model.model_dump(mode="json"), "model")
    if fixed := [key for key, _, now in found if not isinstance(now, str) or PATHS.isdisjoint(key.split(".")[-2:])]:
        raise KitError(
            f"--set {' '.join(changes)}: a trained model's settings are fixed ({', '.join(fixed)}); change only paths"
        )
    return recipe


def load_start_weights(model: RetrievalModel, start: schema.FromModel, banks: Path) -> None:
    """Load the weights of another model with the same layers.

    Words that only `model` knows keep their vectors; the other model's words must be its first.
    """
    folder = Path(start.folder)
    words, known = read_vocabulary(folder), model.text.vocabulary
    if known is not None and known[: len(words)] != words:
        raise KitError(f"the vocabulary of the model {folder} has changed since this run began; start a new run")
    if (folder / "model.safetensors").exists():
        load_weights(model, folder / "model.safetensors")
        return
    other = open_trained(folder, start.stage, start.checkpoint, device=torch.device("cpu"), banks=banks).model
    load_tensors(model, other.state_dict(), folder)
