"""Rules between the keys of a recipe.

`name_mistakes` reads the parsed YAML, so that mistakes in names are reported together with those of the schema.
`fit_mistakes` reads a recipe whose keys, values and names are right.
"""

import itertools
from collections.abc import Iterator
from typing import Any, get_args

from data_tools.manifest import TEST_SPLITS
from data_tools.settings import Keys
from submission.editions import EDITIONS, MOMENTS
from system.audio.stored import Waveform
from system.models.settings import Model
from system.moments.windows import By, Decoding
from system.ranking.entries import ByOneModel, Metric
from system.recipe import schema

Mistakes = Iterator[tuple[Keys, str]]
Misfits = Iterator[tuple[str, str]]  # dotted key, message

# The section whose names stand at a key (*: any name or number), and how to avoid a test split there ("": allowed).
REFERENCES = {
    "relevance.corpus.*": ("data", "count another split"),
    "stages.*.train.data.*": ("data", "train on another split"),
    "stages.*.monitor.data.*": ("data", "validate on another split, or set monitor.test_split to acknowledged"),
    "stages.*.start_from.stage": ("earlier stages", ""),
    "stages.*.losses.*.teachers.*": ("teachers", ""),
    "teachers.*.stage": ("stages", ""),
    "rank.*.stage": ("stages", ""),
    "rank.*.data": ("data", ""),
    "rank.*.of": ("earlier rank", ""),
    "rank.*.of.*": ("earlier rank", ""),  # of kind teachers: teachers
    "rank.*.fit": ("data", "fit models to another split"),
    "rank.*.bank.*": ("data", "name a training split"),
    "rank.*.validation": ("data", "name a validation split"),
}
COMBINED = {"mean": ("checkpoint", "blind", "teachers", "hub_corrected"), "hub_corrected": ("checkpoint", "blind")}
# A run has these folders, or a file of this name, and a folder per stage.
RUN_FOLDERS = {"scores", "submission", "results", "figures", "imports", "tensorboard", "wandb", "lock"}


def child(value: Any, *keys: str | int) -> Any:
    """Return value[key][key]..., or None if a key is missing."""
    for key in keys:
        if isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def below(value: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield the keys and value of everything in a document."""
    yield keys, value
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from below(item, (*keys, key))


def name_mistakes(document: Any) -> Mistakes:
    """Yield names that are unknown, repeated, or of test splits."""
    sections = {key: child(document, key) for key in ("data", "stages", "teachers", "rank")}
    sections = {key: part if isinstance(part, dict) else {} for key, part in sections.items()}
    for name in RUN_FOLDERS & sections["stages"].keys():
        yield ("stages", name), f"every run already has a folder named {name}; give the stage another name"
    for keys, value in below(document):
        at = ".".join(
            "*" if isinstance(key, int) or (i == 1 and keys[0] in sections) else str(key) for i, key in enumerate(keys)
        )
        if at in REFERENCES and isinstance(value, str):
            yield from _reference(document, sections, keys, value, *REFERENCES[at])
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            yield from (
                ((*keys, i), f"{one!r} occurs twice; name it once") for i, one in enumerate(value) if one in value[:i]
            )
        kind, stage, checkpoint = (child(value, key) for key in ("kind", "stage", "checkpoint"))
        metrics = child(sections["stages"].get(str(stage)), "monitor", "metrics")
        if kind != "model" and checkpoint and isinstance(metrics, list) and checkpoint not in ("last", *metrics):
            yield (*keys, "checkpoint"), f"stage {stage!r} does not monitor {checkpoint!r}; add it to monitor.metrics"
    for name, entry in sections["rank"].items():
        known: Any = MOMENTS if child(entry, "kind") == "moments" else EDITIONS
        edition = child(entry, "edition")
        if edition is not None and str(edition) not in known:
            yield ("rank", name, "edition"), f"edition {edition} is not known; known editions: {', '.join(known)}"


def _reference(
    document: Any, sections: dict[str, dict[str, Any]], keys: Keys, value: str, section: str, cure: str
) -> Mistakes:
    kind = child(document, *keys[:2], "kind")
    if child(document, *keys[:-1], "kind") == "model" or (kind == "mean" and "/" in value):
        return  # of another run
    section = "teachers" if kind == "teachers" and section == "earlier rank" else section
    known = list(sections[section.removeprefix("earlier ")])
    if section.startswith("earlier"):
        known = known[: known.index(str(keys[1]))]
    if value not in known:
        yield keys, f"no entry {value!r} in {section}; there: {', '.join(known) or 'none'}"
    source = sections["data"].get(value) if section == "data" else None
    finds_moments = kind == "moments" or child(document, *keys[:2], "unit") == "moment"
    if source is not None and finds_moments and child(source, "moments") is None:
        yield keys, f"data source {value} has no moments; name their file in data.{value}.moments"
    split = child(source, "split")
    is_acknowledged = keys[2] == "monitor" and child(document, *keys[:3], "test_split") == "acknowledged"
    if cure and isinstance(split, str) and split in TEST_SPLITS and not is_acknowledged:
        yield keys, f"{value!r} is a test split ({split}); {cure}"


def fit_mistakes(recipe: schema.Recipe) -> Misfits:
    """Yield settings that do not fit each other."""
    yield from _under("model", _model_mistakes(recipe.model))
    for name, source in recipe.data.items():
        if source.make is not None and source.make.split()[:2] != ["lbar", "data"]:
            yield f"data.{name}.make", "the command must begin with: lbar data"
        if source.make and source.make != recipe.making(source).make:
            yield f"data.{name}.make", f"another source makes {source.manifest} with another command; keep one"
    for name, entry in recipe.rank.items():
        yield from _under(f"rank.{name}", _entry_mistakes(entry, recipe))
    points = recipe.relevance.relax if recipe.relevance else []
    for i, (before, point) in enumerate(itertools.pairwise(points), start=1):
        if before.percentile >= point.percentile or before.factor < point.factor:
            yield f"relevance.relax.{i}", "percentiles must rise, and no factor may be higher than the one before"
    if recipe.stages and not any(recipe.model.trains.values()):
        yield "stages", "the model has nothing to train; leave out the stages, or choose a trainable encoder"
    for name, stage in recipe.stages.items():
        yield from _under(f"stages.{name}", _stage_mistakes(name, stage, recipe))


def _under(key: str, found: Misfits) -> Misfits:
    return ((f"{key}.{inner}".rstrip("."), text) for inner, text in found)


def _model_mistakes(model: Model) -> Misfits:
    score = model.score
    for name, part, wanted in (("audio", model.audio, score.of_series), ("text", model.text, score.of_words)):
        series = "frames" if name == "audio" else "words"
        if wanted and not part.embeds_series:
            yield name, f"score {score.kind} needs an encoder that returns {series}; set `embedding: {series}`"
        if part.embeds_series and not wanted:
            yield f"{name}.embedding", f"score {score.kind} needs one embedding, not {series}; set embedding: mean"
        if getattr(part, "head", None) == "none" and getattr(part, "hidden", None):
            yield f"{name}.hidden", "`head: none` has no layer; remove hidden, or set head: linear"
    if model.text.kind == "pe_audio" and not model.text.is_trained and "dot_product" not in score.kind:
        yield "score", "a frozen text encoder pe_audio needs score dot_product or frame_dot_products"
    for key, text in model.audio.setting_errors(model.text.dim):
        yield f"audio.{key}", text


def _entry_mistakes(entry: Any, recipe: schema.Recipe) -> Misfits:
    model = recipe.model
    if isinstance(entry, ByOneModel):
        if (entry.stage is None) != (entry.checkpoint is None):
            missing = "stage" if entry.stage is None else "checkpoint"
            yield missing, "set both stage and checkpoint, or set both to null"
        if entry.stage is None and (part := model.first_unpublished_encoder):
            yield "stage", f"stage is null, but model.{part} has layers that must be trained; name a stage"
    if entry.kind == "moments":
        yield from _under("decoding", decoding_mistakes(entry.windows, entry.decoding))
        if not model.score.finds_moments:
            yield "", f"moments need score moments or boundary_moments; {model.score.kind} finds some with lbar locate"
    if entry.kind not in COMBINED:
        return
    usable, combined = COMBINED[entry.kind], entry.combined_entries
    for name in combined:
        if recipe.rank[name].kind not in usable:
            yield "of", f"{name} has another kind; entries of these kinds can be used: {', '.join(usable)}"
            return
    if not combined:
        yield "of", "name at least one earlier entry"
    if len({recipe.ranked(name).pool for name in combined}) > 1:
        yield "of", "the entries rank different data sources; name entries of one data source"
    if entry.kind == "hub_corrected":
        ranked = getattr(recipe.rank[entry.of], "data", None)
        is_choice = recipe.data[entry.validation].split == "validation"  # scores there are needed for a blend's weights
        if entry.validation in entry.bank:
            yield "bank", f"data source {entry.validation!r} is also named in `validation`; name a training split"
        for key, names in (("bank", entry.bank), ("validation", () if is_choice else [entry.validation])):
            if ranked in names:
                yield key, f"{ranked!r} is also ranked, so its captions must not be used; name another source"
        if entry.validation in recipe.trained_on:
            yield "validation", f"a stage trains on {entry.validation!r}; name a validation split"


def _stage_mistakes(name: str, stage: schema.Stage, recipe: schema.Recipe) -> Misfits:
    model, monitor, of_moments = recipe.model, stage.monitor, stage.unit == "moment"
    if (stage.unit == "clip") != (stage.captions_per_clip is not None):
        yield "captions_per_clip", f"is for unit clip, and needed there; unit is {stage.unit}"
    if stage.grad_cache_chunk and stage.grad_cache_chunk >= stage.batch_size:
        yield "grad_cache_chunk", f"must be null, or less than batch_size, which is {stage.batch_size}"
    if stage.grad_cache_chunk and not model.embeds_in_chunks:
        yield "grad_cache_chunk", "the model's batch norms or padding need the whole batch; set it to null"
    schedule = stage.schedule
    if isinstance(schedule, schema.EpochSchedule) and schedule.until_epoch <= schedule.warmup_epochs:
        yield "schedule.until_epoch", "must be more than warmup_epochs, so that the learning rate can fall"
    for part in ("schedule", "stop"):
        metric = getattr(getattr(stage, part), "metric", None)
        if metric and metric not in monitor.metrics:
            yield f"{part}.metric", f"{metric} is not monitored; add it to monitor.metrics"
    allowed = schema.OF_WINDOWS | {"loss"} if of_moments else set(get_args(Metric)) - schema.OF_WINDOWS
    for i, metric in enumerate(monitor.metrics):
        if metric not in allowed:
            yield f"monitor.metrics.{i}", f"{metric} is no metric of unit {stage.unit}: {', '.join(sorted(allowed))}"
    for i, term in enumerate(stage.losses):
        yield from _under(f"losses.{i}", _loss_mistakes(name, term, recipe))
    yield from _part_mistakes("optimizer.lr_by_part", list(stage.optimizer.lr_by_part), model.trains)
    yield from _part_mistakes("optimizer.frozen_start", list(stage.optimizer.frozen_start), model.trains)
    stored = [one for one, expert in model.audio.experts.items() if not isinstance(expert, Waveform)]
    if stage.augment is not None and stage.augment.mix is not None:
        if stored:
            yield "augment.mix", f"frames of {', '.join(stored)} are stored, and cannot be mixed; remove mix"
        if any(term.taught_by for term in stage.losses):
            yield "augment.mix", "teachers cannot judge mixed clips; remove mix, or the loss with teachers"
    if not (of_moments and schema.OF_WINDOWS & set(monitor.metrics)):
        for key in ("windows", "decoding"):
            if getattr(monitor, key) is not None:
                yield f"monitor.{key}", f"no metric in monitor.metrics needs windows; leave out {key}"
    elif monitor.decoding:
        yield from _under("monitor.decoding", decoding_mistakes(monitor.windows or "overlap", monitor.decoding))
    if of_moments:
        if not model.score.finds_moments:
            yield "unit", f"moments need the score moments or boundary_moments, not {model.score.kind}"
        if stage.augment is not None:
            yield "augment", "augmentation changes clips and captions, but not moments; set augment to null"


def _loss_mistakes(stage: str, term: Any, recipe: schema.Recipe) -> Misfits:
    unit = recipe.stages[stage].unit
    if term.of_moments != (unit == "moment"):
        of_unit = "two_state and frame_cross_entropy are for moments, all others for clips and pairs"
        yield "", f"{term.kind} does not fit unit {unit}: {of_unit}"
    if term.needs_relevance and recipe.relevance is None:
        yield "relax", "`relax` needs CIDEr-D, but the recipe has no section `relevance`; add this section"
    for number, name in enumerate(term.taught_by):
        teacher, stages = recipe.teachers[name], list(recipe.stages)
        if isinstance(teacher, schema.FromStage) and teacher.stage in stages[stages.index(stage) :]:
            yield f"teachers.{number}", f"stage {teacher.stage!r} must come before this stage, which learns from it"


def decoding_mistakes(by: By, decoding: Decoding) -> Misfits:
    """Yield settings of windows that have no effect."""
    for key in ("heard", "mean_edges") if by == "thresholds" else ("threshold",):
        if getattr(decoding, key):
            yield key, f"{key} has no effect on windows by {by}; leave it out"


def _part_mistakes(at: str, names: list[str], trains: dict[str, bool]) -> Misfits:
    """Yield parts of the model that cannot be named.

    A named part must be trained, and be named once; `frozen_start` must leave something to train.
    """
    for name in names:
        if not trains.get(name):
            parts = ", ".join(part for part, is_trained in trains.items() if is_trained)
            yield f"{at}.{name}", f"the model has no part {name!r} that is trained; such parts: {parts}"
        elif "audio" in names and name not in ("audio", "text"):
            yield f"{at}.{name}", f"{name} is a part of audio, which is named too; name either audio or its parts"
    rest = {"text"} - set(names) if "audio" in names else trains.keys() - {"audio", *names}
    if at.endswith("frozen_start") and not any(trains[name] for name in rest):
        yield at, "all parts are frozen in the first steps, so nothing is trained; remove one part from frozen_start"
