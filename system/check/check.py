"""What a recipe needs: missing files, hours of audio, trainable parameters, disk."""

import math
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import format_size, free_bytes
from data_tools.manifest import Clip, of_split, read_manifest
from data_tools.moments import Moment, read_moments
from submission.editions import get_edition
from system.audio.base import common_fault
from system.batches.augment import Augmentation
from system.batches.items import require_known_windows
from system.recipe import schema
from system.recipe.data import few_clips, input_paths, require_output
from system.runs.folder import trained_files

CHECKED_FILES = 1000  # most audio files of a source that are looked for
SECONDS = 5  # to wait for the size of a published file
MISTAKE, MISSING, WARNING = "MISTAKE", "MISSING", "WARNING"  # kinds of problems, in the order of their cures


class Row(NamedTuple):
    name: str
    fact: str


class Problem(NamedTuple):
    kind: str
    where: str
    message: str


class Found(NamedTuple):
    """Clips and moments of a source, as far as their files exist."""

    clips: Sequence[Clip] = ()
    moments: Sequence[Moment] | None = None
    fault: str = ""  # why the files do not fit each other
    expected: schema.Expected | None = None  # published size, in place of a missing manifest

    def items(self, unit: str) -> int:
        if unit == "moment":
            return len(self.moments or ())
        if self.expected and not self.clips:
            return self.expected.captions if unit == "pair" else self.expected.clips
        return sum(len(clip.captions) if unit == "pair" else bool(clip.captions) for clip in self.clips)

    @property
    def seconds(self) -> float:
        if self.expected and not self.clips:
            return 3600 * self.expected.hours
        return math.fsum(clip.seconds or 0 for clip in self.clips)


Data = Mapping[str, Found]


def find_data(recipe: schema.Recipe) -> Data:
    return {name: _find(source) for name, source in recipe.data.items()}


def check(recipe: schema.Recipe, data: Data, runs: Path, made_before: Collection[Path] = ()) -> Iterator[Row | Problem]:
    """Yield what a recipe has and needs.

    Args:
        made_before: Folders of models that earlier runs of a study train.
    """
    for name, source in recipe.data.items():
        yield from _source(name, source, recipe.making(source), data[name], recipe.model.audio.reads_clips)
    yield from _experts(recipe, data)
    yield from _model(recipe, data)
    for name, teacher in recipe.teachers.items():
        yield from _teacher(name, teacher, made_before)
    for name, stage in recipe.stages.items():
        yield from _stage(name, stage, data, made_before)
    yield from _rankings(recipe, data)
    for name, entry in recipe.rank.items():
        for folder in entry.other_models:
            yield from _trained_model(f"rank {name}", Path(folder), made_before)
    yield from _disk(recipe, data, runs)


def _find(source: schema.Source) -> Found:
    if not Path(source.manifest).exists():
        return Found(expected=source.expected)
    listed = read_manifest(source.manifest)
    clips = [clip for clip in listed if clip.split == source.split]
    try:
        of_split(listed, source.split, source.manifest)
        if source.moments is None or not Path(source.moments).exists():
            return Found(clips)
        ids = {clip.id for clip in clips}
        moments = [moment for moment in read_moments(source.moments, listed) if moment.clip in ids]
        return Found(clips, moments, "" if moments else f"{source.moments} has no moment of the source's clips")
    except KitError as error:
        return Found(clips, None, str(error))


def _source(
    name: str, source: schema.Source, making: schema.Source, found: Found, reads_clips: bool
) -> Iterator[Row | Problem]:
    where, file = f"data {name}", f"{source.manifest} [{source.split}]"
    if found.fault:
        yield Problem(MISTAKE, where, found.fault)
    if not found.clips:
        if not found.fault:
            yield from _missing_manifest(where, file, source.expected, making)
        return
    captions = sum(len(clip.captions) for clip in found.clips)
    sizes = [counted(len(found.clips), "clip", ","), counted(captions, "caption", ","), f"{found.seconds / 3600:.2f} h"]
    sizes += [counted(len(found.moments), "moment", ",")] if found.moments else []
    yield Row(where, f"{file}  {', '.join(sizes)}")
    if few := few_clips(source, len(found.clips)):
        yield Problem(MISSING, where, f"only {few}")
    some = found.clips[:: max(1, math.ceil(len(found.clips) / CHECKED_FILES))] if reads_clips else ()
    if absent := [clip.path for clip in some if not Path(clip.path).exists()]:
        checked = "" if len(some) == len(found.clips) else f" of {len(some):,} checked"
        cure = "put the files at these paths, or make the manifest again"
        message = f"{counted(len(absent), 'audio file', ',')}{checked} not found, first {absent[0]}; {cure}"
        yield Problem(MISSING, where, message)
    if source.moments and found.moments is None and not found.fault:
        cure = "make it with lbar data castella or scenes --moments"
        yield Problem(MISSING, where, f"the moments file {source.moments} is missing; {cure}")


def _missing_manifest(
    where: str, file: str, expected: schema.Expected | None, source: schema.Source
) -> Iterator[Row | Problem]:
    size = f", published: {expected.clips:,} clips, {expected.hours:.2f} h" if expected else ""
    at = f"published at {source.published}" if source.published else "the recipe does not say where it is published"
    if source.make is None:
        yield Row(where, f"{file}  missing{size}")
        yield Problem(MISSING, source.manifest, f"put the manifest at this path; {at}")
        return
    try:
        require_output(source.make, Path(source.manifest))
        absent = [str(path) for path in input_paths(source.make) if not path.exists()]
    except KitError as error:
        yield Problem(MISTAKE, f"make of {source.manifest}", str(error))
        return
    yield Row(where, f"{file}  not made yet; `run` makes it with: {source.make}{size}")
    yield from (Problem(MISSING, path, f"put this file or folder at its path; {at}") for path in absent)


def _experts(recipe: schema.Recipe, data: Data) -> Iterator[Row | Problem]:
    for name, expert in recipe.model.audio.experts.items():
        size = _bank_bytes(recipe, data, name)
        stored = f", {format_size(size)} in {recipe.banks}/" if size else ""
        licence = f", licence of the weights: {expert.licence}" if expert.licence else ""
        yield Row(f"expert {name}", f"{expert.frame_description}{stored}{licence}")
        for source, found in data.items():
            if fault := common_fault(expert, found.clips):
                yield Problem(MISTAKE, f"expert {name}, data {source}", fault)


def _bank_bytes(recipe: schema.Recipe, data: Data, name: str) -> float:
    """Return the bytes of an expert's stored frames of all clips."""
    expert = recipe.model.audio.experts[name]
    if not expert.computed or expert.kind == "waveform":
        return 0.0
    unique = {(source.manifest, source.split): data[key].seconds for key, source in recipe.data.items()}
    return sum(unique.values()) * expert.frames_per_second * expert.dim * np.dtype(expert.dtype).itemsize


def _model(recipe: schema.Recipe, data: Data) -> Iterator[Row | Problem]:
    absent = set()
    problems = {key: [need.problem() for need in part.needs()] for key, part in recipe.model.parts.items()}
    yield from (Problem(MISSING, *one) for found in problems.values() for one in found if one)
    for side, encoder in recipe.model.encoders.items():
        folders = [str(folder) for need in encoder.needs() if need.model and (folder := need.folder())]
        yield Row(f"model {side}", f"{encoder.description}{', in ' if folders else ''}{''.join(folders)}")
        if any(problems[side]) and (side == "text" or any(need.model for need in encoder.needs())):
            absent.add(side)  # it cannot be built
    for source, found in data.items():
        if fault := recipe.model.text.texts_fault([text for clip in found.clips for text in clip.captions]):
            yield Problem(MISTAKE, f"text, data {source}", fault)
    if not recipe.model.text.is_trained:
        absent.discard("text")
    elif recipe.model.text.reads_vocabulary:
        starts = [stage.start_from for stage in recipe.stages.values()]
        untrained = any(isinstance(one, schema.FromModel) and not Path(one.folder).exists() for one in starts)
        if untrained or not all(data[name].clips for name in recipe.trained_on):
            absent.add("text")
    try:
        counts = trainable_parameters(recipe, data, absent)
    except KitError as error:
        yield Problem(MISTAKE, "model", str(error))
        return
    parts = [f"{name} {count:,}" for name, count in counts.items()]
    parts += [f"{side} unknown until its files are here" for side in sorted(absent)]
    yield Row("parameters", f"{', '.join(parts)}; {sum(counts.values()):,} trainable in total")


def trainable_parameters(recipe: schema.Recipe, data: Data, absent: Collection[str] = ()) -> dict[str, int]:
    """Count the trainable parameters of each part of the model.

    Args:
        absent: Sides of the model, audio or text, that cannot be built.
    """
    from system.models.scores import count_layer_parameters
    from system.runs.open import training_vocabulary

    model = recipe.model
    parts: dict[str, Any] = {}
    if "audio" not in absent:
        parts |= model.audio.build(model.text.dim).parts()
    if "text" not in absent and model.text.is_trained:
        words = training_vocabulary(recipe, {name: found.clips for name, found in data.items()})
        parts["text"] = model.text.build(words, Path(recipe.banks))
    counts = {name: sum(p.numel() for p in part.parameters() if p.requires_grad) for name, part in parts.items()}
    counts |= {} if model.text.is_trained else {"text": 0}
    return counts | count_layer_parameters(model.score.build(model.text.dim))


def _teacher(name: str, teacher: schema.Teacher, made_before: Collection[Path]) -> Iterator[Row | Problem]:
    if isinstance(teacher, schema.ModelTeacher):
        yield Row(f"teacher {name}", teacher.folder)
        yield from _trained_model(f"teacher {name}", Path(teacher.folder), made_before)
    elif isinstance(teacher, schema.EmbeddingsTeacher) and not Path(teacher.file).is_file():
        yield Problem(MISSING, f"teacher {name} {teacher.file}", "write this file with lbar embed")


def _trained_model(where: str, folder: Path, made_before: Collection[Path]) -> Iterator[Problem]:
    try:
        if folder not in made_before:
            trained_files(folder)
    except KitError as error:
        untrained = "no trained model is in this folder; train it first, or name another folder"
        yield Problem(MISSING, f"{where} {folder}", str(error) if (folder / "resolved.json").exists() else untrained)


def _stage(name: str, stage: schema.Stage, data: Data, made_before: Collection[Path]) -> Iterator[Row | Problem]:
    where, sources = f"stage {name}", [data[source] for source in stage.train.data]
    steps = steps_per_epoch(stage, data)
    updates = f"{stage.epochs * steps:,} updates" if steps else "unknown number of updates"
    yield Row(where, f"{updates} of {stage.batch_size} {stage.unit}s from {' + '.join(stage.train.data)}")
    items = sum(found.items(stage.unit) for found in sources)
    if all(found.items(stage.unit) for found in sources) and items < stage.batch_size:
        message = f"batch_size {stage.batch_size} is more than the {counted(items, 'item')} of the data; lower it"
        yield Problem(MISTAKE, where, message)
    monitored = [data[source] for source in stage.monitor.data]
    count = sum(found.items("clip") for found in monitored)
    if stage.unit != "moment" and all(found.items("clip") for found in monitored) and count < 2:
        yield Problem(MISTAKE, where, f"validation needs two clips with captions, but has {count}; change monitor.data")
    if stage.unit == "moment":
        try:
            require_known_windows([moment for found in (*sources, *monitored) for moment in found.moments or ()])
        except KitError as error:
            yield Problem(MISTAKE, where, str(error))
    files = stage.augment.files() if stage.augment else ()
    absent = [file for file in files if not Path(file).is_file()]
    yield from (Problem(MISSING, f"{where} {file}", "this file does not exist; correct the path") for file in absent)
    if stage.augment and not absent:
        try:
            Augmentation(stage.augment, [clip for found in sources for clip in found.clips])
        except KitError as error:
            yield Problem(MISTAKE, f"{where} augment", str(error))
    if isinstance(stage.start_from, schema.FromModel):
        yield from _trained_model(f"{where} starts from", Path(stage.start_from.folder), made_before)


def steps_per_epoch(stage: schema.Stage, data: Data) -> int:
    """Return the training steps of an epoch; 0 if they are unknown."""
    if stage.steps_per_epoch != "all":
        return stage.steps_per_epoch
    items = [data[source].items(stage.unit) for source in stage.train.data]
    return sum(items) // stage.batch_size if all(items) else 0


def _rankings(recipe: schema.Recipe, data: Data) -> Iterator[Row | Problem]:
    for name, entry in recipe.rank.items():
        ranked = recipe.ranked(name)
        if (missing := getattr(ranked, "missing_files", None)) is not None:  # a blind set
            absent = f"; skipped until {' and '.join(missing)} exist" if missing else ""
            yield Row(f"rank {name}", f"{ranked.audio} {entry.how_scored}, edition {entry.edition}{absent}")  # type: ignore[attr-defined]
            continue
        yield Row(f"rank {name}", f"{ranked.data} {entry.how_scored}, edition {entry.edition}")
        if entry.finds_windows or not entry.csv:
            continue
        clips = len(data[ranked.data].clips)
        edition = get_edition(entry.edition).for_pool(clips)
        if edition.output == "ranked" and 0 < clips < edition.ranking_length:
            message = (
                f"a ranked CSV needs {edition.ranking_length} clips, but {ranked.data} has {clips}; set csv: false"
            )
            yield Problem(MISTAKE, f"rank {name}", message)


def _disk(recipe: schema.Recipe, data: Data, runs: Path) -> Iterator[Row | Problem]:
    free = {folder: free_bytes(folder) for folder in (Path(recipe.banks), runs)}
    yield Row("free disk", ", ".join(f"{format_size(size)} in {folder}/" for folder, size in free.items()))
    needed = sum(_bank_bytes(recipe, data, name) for name in recipe.model.audio.experts)
    if needed > free[Path(recipe.banks)]:
        yield Problem(WARNING, recipe.banks, f"about {format_size(needed)} of frames do not fit; use another disk")


def to_fix(problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """Return the kind and the text of each problem, the first to be fixed first."""
    with ThreadPoolExecutor() as pool:
        messages = pool.map(_with_size, (problem.message for problem in problems))
    where: dict[tuple[str, str], list[str]] = {}
    for problem, message in zip(problems, messages, strict=True):
        where.setdefault((problem.kind, message), []).append(problem.where)
    lines = [(kind, f"{', '.join(dict.fromkeys(names))}: {text}") for (kind, text), names in where.items()]
    return sorted(lines, key=lambda line: (MISTAKE, MISSING, WARNING).index(line[0]))


def _with_size(message: str) -> str:
    """Add the size of the published file that a message names, if its server says it."""
    address = next((word.strip(";,") for word in message.split() if word.startswith("https://")), None)
    with suppress(OSError, ValueError, TypeError):
        request: Any = urllib.request.Request(str(address), method="HEAD")
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            if "html" not in answer.headers["Content-Type"]:
                return f"{message} ({format_size(int(answer.headers['Content-Length']))})"
    return message
