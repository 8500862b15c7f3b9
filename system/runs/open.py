"""Making a model from a recipe, and opening a trained one: a run's checkpoint or an exported folder."""

import json
import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from data_tools.documents.json_text import read_json, read_shaped, require_unharmed
from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.words import vocabulary_of
from submission.runs.reading import read_result, to_finish
from submission.runs.record import FittedScore, ModelFacts
from system.compute.device import device_of, memory_errors, moved
from system.models.moment_score import MomentScore
from system.models.retrieval import RetrievalModel
from system.ranking.checkpoint import ByOneModel, RankBlind
from system.recipe import schema
from system.recipe.load import load_recipe
from system.runs.checkpoints import load_checkpoint, load_weights, restore
from system.runs.folder import Run
from system.runs.provenance import require_same

log = logging.getLogger(__name__)


def build_model(recipe: schema.Recipe, vocabulary: list[str]) -> RetrievalModel:
    """A model with fresh weights, drawn from torch's random state."""
    with memory_errors("the model", "make its layers smaller, or use a machine with more memory"):
        return RetrievalModel(recipe.model, recipe.model.text.build(vocabulary, Path(recipe.banks)))


def training_vocabulary(
    recipe: schema.Recipe, clips: Mapping[str, Sequence[Clip]], more: Sequence[str] = ()
) -> list[str]:
    """Words of the captions that any stage trains on, for an encoder from scratch; empty for a pre-trained one. more:
    what these captions may be changed to.

    Words of the exported model that a stage starts from come first, in its order, since word vectors go by place.
    """
    if not recipe.model.text.reads_vocabulary:
        return []
    starts = {s.start_from.folder for s in recipe.stages.values() if isinstance(s.start_from, schema.FromModel)}
    if len(starts) > 1:
        raise KitError(f"stages start from several models ({', '.join(sorted(starts))}), whose words differ; use one")
    before = [word for folder in starts for word in _words_of(Path(folder))]
    captions = (caption for source in recipe.trained_on for clip in clips[source] for caption in clip.captions)
    found = vocabulary_of([*captions, *more])
    return list(dict.fromkeys([*before, *found]))


PUBLISHED = "published weights"  # a checkpoint, in words
EXPORT_AGAIN = "write the model again with python -m system export"


def _exported_facts(folder: Path) -> ModelFacts:
    """model.json of an exported model that is as it was written. KitError for no such folder, DataError for a damaged
    one."""
    if not (folder / "model.safetensors").exists():
        raise KitError(f"{folder} is not an exported model; make one with python -m system export")
    facts = read_shaped(folder / "model.json", ModelFacts, EXPORT_AGAIN)
    for name, checksum in facts.sha256.items():
        require_unharmed(folder / name, checksum, EXPORT_AGAIN)
    return facts


def _words_of(folder: Path) -> list[str]:
    """Of an exported model, or of a run."""
    if (folder / "resolved.json").exists():
        run = Run(folder)
        return _vocabulary(folder, run.again(run.vocabulary))
    _exported_facts(folder)
    return _vocabulary(folder, EXPORT_AGAIN)


def _vocabulary(folder: Path, hint: str) -> list[str]:
    path = folder / "vocabulary.json"
    words = read_json(path, hint) if path.exists() else []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise KitError(f"{path} is damaged (it is no list of words); {hint}")
    return words


@dataclass(frozen=True)
class Trained:
    """A model ready to rank. recipe: what it was made by. facts: what to record beside its scores. folder: its own."""

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
    """Open a run (`stage` and `checkpoint`: default, those of its first `rank` entry that is no mean,
    one with figures before a blind one) or an exported model.

    changes: settings that may differ on this machine, such as where an expert's weights lie. device: None for this
    machine's. banks: those of an exported model, whatever its recipe says, unless `changes` names others.
    Raises KitError for what does not fit, DataError for a missing or damaged file.
    """
    if (folder / "model.safetensors").exists():
        if stage or checkpoint:
            said = "is an exported model and holds one checkpoint; leave out --stage and --checkpoint"
            raise KitError(f"{folder} {said}")
        return _open_exported(folder, [f"banks={json.dumps(str(banks))}", *(changes or [])], device or device_of())
    if (folder / "resolved.json").exists():
        return _open_run(Run(folder), stage, checkpoint, changes or [], device or device_of())
    raise KitError(
        f"{folder} is neither a run (resolved.json) nor an exported model (model.safetensors); name one's folder"
    )


def score_of_windows(trained: Trained) -> MomentScore:
    """The score by which a model's windows are found: with the scale, offset and transitions that the run's first rank
    entry of moments was fitted to, where the run is finished and this is the checkpoint of that entry, or where the
    model was exported of such a run; else as it was trained. A warning says so where that entry is fitted. Clips are
    ranked by the score as it was trained. ValueError for a model that has no score of moments."""
    score, noted = deepcopy(trained.model.moments), trained.facts.fitted
    name, entry = next(iter(trained.recipe.rank_moments.items()), ("", None))
    if noted is None and entry is not None and entry.fit is not None:
        noted = _fitted_in_run(trained, name, entry.fit)
        if noted is None:
            hint = "open the finished run without --stage and --checkpoint, or rank it again"
            log.warning("rank entry %s is fitted to %s, and this model is not; %s", name, entry.fit, hint)
    if noted is not None:
        score.load_state_dict({key: torch.tensor(value) for key, value in noted})
    return score


def with_fit(trained: Trained) -> Trained:
    """For an export: the model with what its windows are found by among its facts."""
    name, entry = next(iter(trained.recipe.rank_moments.items()), ("", None))
    fitted = None if entry is None or entry.fit is None else _fitted_in_run(trained, name, entry.fit)
    return replace(trained, facts=trained.facts.model_copy(update={"fitted": fitted})) if fitted else trained


def _fitted_in_run(trained: Trained, name: str, source: str) -> FittedScore | None:
    """What result.json says of an entry; None of a run that is not finished, and of another checkpoint."""
    is_finished = (trained.folder / "result.json").exists()
    found = read_result(trained.folder).moments.get(name) if is_finished else None
    is_same = found is not None and found.checkpoint == fitted_text(trained.facts.checkpoint, source)
    return found.fitted if found is not None and is_same else None


def fitted_text(checkpoint: str, source: str) -> str:
    """A checkpoint in words, with what its score was fitted to after training."""
    return f"{checkpoint}, fitted to {source}"


def _open_run(run: Run, stage: str | None, checkpoint: str | None, changes: list[str], device: torch.device) -> Trained:
    if not run.vocabulary.exists():
        raise KitError(f"{run.folder} has not been trained yet; {to_finish(run.folder)}")
    provenance = run.read_provenance()  # refuses a damaged resolved.json before it is read
    recipe = _moved(run.folder / "resolved.json", [*_found_where_trained(run, provenance.started_in), *changes])
    single = [entry for entry in recipe.rank.values() if isinstance(entry, ByOneModel)]
    first = min(single, key=lambda entry: isinstance(entry, RankBlind), default=None)
    if stage is None and first is not None:
        stage = first.stage
    elif stage is None and recipe.stages:
        stage = list(recipe.stages)[-1]
    if stage is not None and stage not in recipe.stages:
        raise KitError(f"{run.folder} has no stage {stage!r}; there are {', '.join(recipe.stages) or 'none'}")
    if stage is None and recipe.model.unpublished:
        teachers = ", ".join(str(schema.outside(teacher) or name) for name, teacher in recipe.teachers.items())
        raise KitError(f"{run.folder} has no model of its own: it ranks by {teachers or 'nothing'}; name one of these")
    checkpoint = checkpoint or (first.checkpoint if first and first.stage == stage else "last")
    model = moved(build_model(recipe, _vocabulary(run.folder, run.again(run.vocabulary))), device)
    experts = as_trained(run.folder, provenance.experts, identities(recipe))
    require_same(run, {"experts": experts, "text": model.text.identity()})
    if stage is None:
        model.audio.load_pretrained()
    taken = PUBLISHED if stage is None else load_checkpoint(model, run.folder / stage, checkpoint or "last")
    return Trained(model, recipe, facts_of(run, model, recipe, taken), run.folder)


def _found_where_trained(run: Run, started_in: str | None) -> list[str]:
    """Changes of settings that name a file or folder by a relative path, for a run that is opened from another folder:
    to where it was when the run was trained, if it is there and not here."""
    if started_in is None:
        return []
    recipe, start = load_recipe(run.folder / "resolved.json").recipe, run.folder.resolve() / started_in
    audio, text = recipe.model.audio, recipe.model.text
    named = {f"model.audio.{name}": getattr(audio, name) for name in audio.file_settings}
    named |= {f"model.text.{name}": getattr(text, name) for name in text.file_settings}
    for expert_name, expert in audio.experts.items():
        files = {*expert.weight_files(), *(["model"] if expert.hub_model is not None else [])}
        named |= {f"model.audio.experts.{expert_name}.{name}": getattr(expert, name) for name in files}
    named["banks"] = recipe.banks
    relative = {key: value for key, value in named.items() if value is not None and not Path(value).is_absolute()}
    found = {key: start / value for key, value in relative.items() if not Path(value).exists()}
    return [f"{key}={json.dumps(str(path.resolve()))}" for key, path in found.items() if path.exists()]


def _moved(path: Path, changes: list[str]) -> schema.Recipe:
    """The recipe with changes of where things lie on this machine, and no others. KitError for another change."""
    recipe = load_recipe(path, changes).recipe
    if _trained_settings(recipe) != _trained_settings(load_recipe(path).recipe):
        parts = {"audio": recipe.model.audio, "text": recipe.model.text}
        files = [f"model.{part}.{name}" for part, settings in parts.items() for name in sorted(settings.file_settings)]
        raise KitError(
            f"{' '.join(changes)}: a trained model's settings stay; only {', '.join([*files, 'banks'])} and the "
            "experts' weights may change"
        )
    return recipe


def _trained_settings(recipe: schema.Recipe) -> dict[str, Any]:
    audio, text = recipe.model.audio, recipe.model.text
    files = {"audio": {"experts", *audio.file_settings}, "text": set(text.file_settings)}
    experts = {name: expert.model_dump(exclude=set(expert.weight_files())) for name, expert in audio.experts.items()}
    return recipe.model.model_dump(exclude=files) | {"experts": experts}


def facts_of(run: Run, model: RetrievalModel, recipe: schema.Recipe, checkpoint: str) -> ModelFacts:
    """What is recorded beside scores and exported weights."""
    editions = {str(entry.edition) for entry in recipe.rank.values()}
    return ModelFacts(
        recipe=recipe.name,
        seed=recipe.seed,
        run=run.folder.name,
        checkpoint=checkpoint,
        edition=editions.pop() if len(editions) == 1 else None,
        commits=run.read_provenance().commits,
        experts=identities(recipe),
        text=model.text.identity(),
    )


def identities(recipe: schema.Recipe) -> dict[str, dict[str, Any]]:
    """Of the recipe's experts, by name."""
    return {name: expert.identity() for name, expert in recipe.model.audio.experts.items()}


def as_trained(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Identities of experts by name, with the versions of frames that a model was trained on; a warning for each expert
    that has another one."""
    taken: dict[str, Any] = json.loads(json.dumps(now))
    for name in before.keys() & taken.keys():
        version = before[name].get("version")
        if version != taken[name]["version"]:
            log.warning(
                "%s was trained on %s as its frames were computed before (version %s); they are computed anew "
                "(version %s), which may change scores a little", folder, name, version, taken[name]["version"],
            )  # fmt: skip
            taken[name]["version"] = version
    return taken


def _open_exported(folder: Path, changes: list[str], device: torch.device) -> Trained:
    facts = _exported_facts(folder)
    if (folder / "text").is_dir():  # the exported sentence encoder, wherever the folder now lies
        changes = [f"model.text.model={json.dumps(str((folder / 'text').resolve()))}", *changes]
    if (folder / "audio").is_dir():
        changes = [f"model.audio.model={json.dumps(str((folder / 'audio').resolve()))}", *changes]
    recipe = _moved(folder / "recipe.json", changes)
    now = identities(recipe)
    for name, identity in as_trained(folder, facts.experts, now).items():
        if identity != facts.experts.get(name):
            raise KitError(
                f"{folder} was trained on frames of another {name} (its identity is in model.json); "
                f"name the same weight file with --set model.audio.experts.{name}.weights=FILE"
            )
    model = moved(build_model(recipe, _vocabulary(folder, EXPORT_AGAIN)), device)
    files = recipe.model.text.weight_files()
    if files and model.text.identity() != facts.text:
        raise KitError(
            f"{folder} was trained with other {' and '.join(files)} of {recipe.model.text.kind} (the checksum is in "
            f"model.json); name the same file with {' '.join(f'--set model.text.{name}=FILE' for name in files)}"
        )
    load_weights(model, folder / "model.safetensors", EXPORT_AGAIN)
    noted = facts.model_dump(by_alias=True, exclude_unset=True, exclude={"sha256"})
    return Trained(model, recipe, ModelFacts.model_validate(noted | {"experts": now}), folder)


def start_from(model: RetrievalModel, start: schema.FromModel, banks: Path) -> None:
    """Take the weights of a finished run or an exported model into one of the same shape.

    Words that the other model does not have keep the vectors they have in `model`; KitError when its words are not
    the first ones of `model`'s.
    """
    folder = Path(start.folder)
    words = _words_of(folder)
    known = model.text.vocabulary
    if known is not None and known[: len(words)] != words:
        raise KitError(f"{folder} has other words than when this run began; start a new run")
    if (folder / "model.safetensors").exists():
        load_weights(model, folder / "model.safetensors", EXPORT_AGAIN)
        return
    other = open_trained(folder, start.stage, start.checkpoint, device=torch.device("cpu"), banks=banks).model
    restore(model, other.state_dict(), folder)
