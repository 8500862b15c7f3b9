"""Rules between kinds.

Check that settings of different kinds fit each other: losses, teachers, parts of the model, and mixing of clips. Each
kind, a class of settings, declares its needs.
"""

from collections.abc import Iterator
from typing import get_args

from data_tools.settings import Keys
from system.audio.waveform import Waveform
from system.moments.windows import By, Decoding
from system.ranking.checkpoint import ByOneModel, Metric
from system.recipe import schema

OF_ALL_CLIPS = {"mAP@10", "mAP@16", "recall_sum"}  # metrics of captions against all clips


def check_kinds(recipe: schema.Recipe) -> Iterator[tuple[Keys, str]]:
    """Yield (keys, error message) for kinds of settings in a recipe that do not fit each other, e.g. model and loss.

    The recipe must have passed the schema.
    """
    for name, entry in recipe.rank.items():
        if isinstance(entry, ByOneModel) and entry.stage is None and (part := recipe.model.first_unpublished_encoder):
            yield (
                ("rank", name, "stage"),
                f"stage is null, but model.{part} has layers that must be trained; name a stage",
            )
    for name, ranked in recipe.rank_moments.items():
        yield from _check_has_moments(("rank", name, "data"), ranked.data, recipe)
        if ranked.fit is not None:
            yield from _check_has_moments(("rank", name, "fit"), ranked.fit, recipe)
        yield from _check_decoding(("rank", name, "decoding"), ranked.windows, ranked.decoding)
        if not recipe.model.score.finds_moments:
            hint = "with this model, find moments with lbar locate"
            yield (
                ("rank", name),
                f"moments need score moments or boundary_moments, not {recipe.model.score.kind}; {hint}",
            )
    if recipe.stages and not any(recipe.model.trains.values()):
        yield ("stages",), "the model has nothing to train; leave out the stages, or choose a trainable encoder"
        return
    for name, stage in recipe.stages.items():
        for i, term in enumerate(stage.losses):
            if term.needs_relevance and recipe.relevance is None:
                yield (
                    ("stages", name, "losses", i, "relax"),
                    "`relax` needs CIDEr-D, but the recipe has no section `relevance`; add this section",
                )
            for number, teacher in enumerate(term.taught_by):
                yield from _check_teacher(("stages", name, "losses", i, "teachers", number), teacher, name, recipe)
            if term.learned_temperature and recipe.model.learned_temperature is None:
                yield (
                    ("stages", name, "losses", i, "temperature"),
                    "the temperature is learned, but has no start value; set model.learned_temperature",
                )
        for key, parts in (("lr_by_part", stage.optimizer.lr_by_part), ("frozen_start", stage.optimizer.frozen_start)):
            yield from _check_model_parts(("stages", name, "optimizer", key), list(parts), recipe.model.trains)
        yield from _check_mix(("stages", name, "augment", "mix"), stage, recipe)
        yield from _check_moments(("stages", name), stage, recipe)
        if stage.grad_cache_chunk is not None and not recipe.model.embeds_in_chunks:
            yield (
                ("stages", name, "grad_cache_chunk"),
                "the model's batch norms or padding need the whole batch; set grad_cache_chunk to null",
            )


def _check_moments(at: Keys, stage: schema.Stage, recipe: schema.Recipe) -> Iterator[tuple[Keys, str]]:
    """Yield keys and error messages for settings of a stage that do not fit its `unit` (clip, pair or moment)."""
    of_moments = stage.unit == "moment"
    for i, term in enumerate(stage.losses):
        if term.of_moments and not of_moments:
            yield (*at, "losses", i), f"{term.kind} is a loss for moments; set unit: moment"
        if of_moments and not term.of_moments:
            yield (*at, "losses", i), f"{term.kind} is no loss for moments; use two_state or frame_cross_entropy"
    allowed = schema.OF_WINDOWS | {"loss"} if of_moments else set(get_args(Metric)) - schema.OF_WINDOWS
    for i, metric in enumerate(stage.monitor.metrics):
        if metric not in allowed:
            yield (
                (*at, "monitor", "metrics", i),
                f"unit {stage.unit} has no metric {metric}; its metrics: {', '.join(allowed)}",
            )
    if not (of_moments and schema.OF_WINDOWS & set(stage.monitor.metrics)):
        for key in ("windows", "decoding"):
            if getattr(stage.monitor, key) is not None:
                message = (
                    f"no metric in monitor.metrics needs windows; leave out {key}"
                    if of_moments
                    else f"unit {stage.unit} finds no windows; leave out {key}"
                )
                yield (*at, "monitor", key), message
    if not of_moments:
        return
    if stage.monitor.windows and stage.monitor.decoding:
        yield from _check_decoding((*at, "monitor", "decoding"), stage.monitor.windows, stage.monitor.decoding)
    for part, names in (("train", stage.train.data), ("monitor", stage.monitor.data)):
        for i, name in enumerate(names):
            yield from _check_has_moments((*at, part, "data", i), name, recipe)
    if not recipe.model.score.finds_moments:
        yield (
            (*at, "unit"),
            f"moments need the score moments or boundary_moments, not {recipe.model.score.kind}; change model.score",
        )
    if stage.augment is not None:
        yield (*at, "augment"), "augmentation changes clips and captions, but not moments; set augment to null"


def _check_decoding(at: Keys, by: By, decoding: Decoding) -> Iterator[tuple[Keys, str]]:
    """Yield keys and error messages for settings of decoding that have no effect if windows are found by thresholds."""
    for key in ("heard", "mean_edges") if by == "thresholds" else ():
        if getattr(decoding, key):
            yield (*at, key), f"{key} has no effect on windows by thresholds; leave it out"


def _check_has_moments(at: Keys, name: str, recipe: schema.Recipe) -> Iterator[tuple[Keys, str]]:
    """Yield the key and an error message if the data source `name` has no moments."""
    if name in recipe.data and recipe.data[name].moments is None:
        yield at, f"data source {name} has no moments; name their file in data.{name}.moments"


def _check_mix(at: Keys, stage: schema.Stage, recipe: schema.Recipe) -> Iterator[tuple[Keys, str]]:
    """Yield keys and error messages if a stage mixes clips' audio, but trains on stored frames or has teachers."""
    if stage.augment is None or stage.augment.mix is None:
        return
    stored = [name for name, expert in recipe.model.audio.experts.items() if not isinstance(expert, Waveform)]
    if stored:
        yield (
            at,
            f"model.audio reads frames of {', '.join(stored)}, which are stored and cannot be mixed; remove mix, or "
            "use an encoder on waveforms, such as panns or passt",
        )
    if any(term.taught_by for term in stage.losses):
        yield at, "teachers cannot judge mixed clips; remove mix, or the loss with teachers"


def _check_teacher(at: Keys, name: str, stage: str, recipe: schema.Recipe) -> Iterator[tuple[Keys, str]]:
    """Yield a key and an error message if a loss of `stage` names a teacher that is missing or not trained earlier."""
    teacher = recipe.teachers.get(name)
    if teacher is None:
        yield at, f"the recipe has no teacher {name!r}; its teachers: {', '.join(recipe.teachers) or 'none'}"
    elif isinstance(teacher, schema.StageTeacher):
        stages = list(recipe.stages)
        if teacher.stage in stages[stages.index(stage) :]:
            yield (
                ("teachers", name, "stage"),
                f"stage {teacher.stage!r} must come before stage {stage!r}, which learns from it",
            )


def _check_model_parts(at: Keys, names: list[str], trains: dict[str, bool]) -> Iterator[tuple[Keys, str]]:
    """Yield the key and an error message for each named part of the model that is missing or not trainable.

    names: Parts of the model that a setting names. trains: Dict from part to whether it has trainable parameters.
    """
    for name in names:
        if name not in trains:
            yield (*at, name), f"the model has no part {name!r}; its parts: {', '.join(trains)}"
        elif not trains[name]:
            yield (*at, name), f"{name} has no trainable parameters; leave it out"
        elif "audio" in names and name not in ("audio", "text"):
            yield (*at, name), f"{name} is a part of audio, which is named too; name either audio or its parts"
    if "audio" in names:
        names = [name for name in trains if name != "text" or name in names]
    if at[-1] == "frozen_start" and not any(trains[name] for name in trains.keys() - {"audio", *names}):
        yield at, "all parts are frozen in the first steps, so nothing is trained; remove one part from frozen_start"
