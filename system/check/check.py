"""What a recipe needs, and what to fix."""

import math
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import format_size, free_bytes
from data_tools.manifest import Clip, of_split, read_manifest
from data_tools.moments import Moment
from submission.editions import get_edition
from system.audio import common_fault
from system.batches.augment import Augmentation
from system.batches.items import make_items, require_known_windows
from system.models.retrieval import trainable_numbers
from system.recipe import schema
from system.recipe.data import few_clips, input_paths, moments_of
from system.recipe.load import load_recipe
from system.runs.folder import trained_files
from system.runs.open import training_vocabulary

CHECKED_FILES = 1000  # most audio files of a source that are looked for
SECONDS = 5  # to wait for the size of a published file
FACT, MISTAKE, MISSING, WARNING = "", "MISTAKE", "MISSING", "WARNING"  # kinds of lines; problems in the order of cures


class Line(NamedTuple):
    """A fact, or a problem."""

    kind: str
    where: str
    text: str


class Found(NamedTuple):
    """What is known of a source's clips and moments."""

    clips: Sequence[Clip] = ()
    moments: Sequence[Moment] = ()
    fault: str = ""  # why the files do not fit each other
    expected: schema.Expected | None = None  # published size, in place of a missing manifest

    def items(self, unit: str) -> int:
        if unit == "moment":
            return len(self.moments)
        if self.expected:
            return self.expected.captions if unit == "pair" else self.expected.clips
        return len(make_items(self.clips, unit))

    @property
    def seconds(self) -> float:
        return 3600 * self.expected.hours if self.expected else math.fsum(clip.seconds or 0 for clip in self.clips)


Data = Mapping[str, Found]


def print_check(path: Path, changes: list[str], step: bool, device: str | None) -> bool:
    """Print what a recipe needs; return whether it can run."""
    recipe = load_recipe(path, changes).recipe
    data = find_data(recipe)
    lines = list(check(recipe, data))
    facts = [line for line in lines if line.kind == FACT]
    problems = [line for line in lines if line.kind != FACT]
    width = max(len(line.where) for line in facts)
    print(f"recipe {recipe.name}, seed {recipe.seed}:")
    print(*(f"  {line.where:{width}}  {line.text}" for line in facts), sep="\n")
    if step:
        from system.check.measure import measure
        from system.devices import device_of

        clips = {name: found.clips for name, found in data.items()}
        steps = {name: steps_per_epoch(stage, data) for name, stage in recipe.stages.items()}
        for text in measure(recipe, clips, steps, device_of(device)):
            print(f"  step {text}")
    if problems:
        print("to fix, the first one first:", *(f"  {kind}  {text}" for kind, text in to_fix(problems)), sep="\n")
    can_run = all(line.kind == WARNING for line in problems)
    if can_run:
        print("nothing is missing")
    return can_run


def to_fix(problems: Sequence[Line]) -> list[tuple[str, str]]:
    """Return (kind, text) of problems in the order of cures.

    Equal texts are said once, with all places.
    """
    with ThreadPoolExecutor() as pool:
        texts = pool.map(_with_size, (problem.text for problem in problems))
    where: dict[tuple[str, str], list[str]] = {}
    for problem, text in zip(problems, texts, strict=True):
        where.setdefault((problem.kind, text), []).append(problem.where)
    lines = [(kind, f"{', '.join(dict.fromkeys(names))}: {text}") for (kind, text), names in where.items()]
    return sorted(lines, key=lambda line: (MISTAKE, MISSING, WARNING).index(line[0]))


def _with_size(message: str) -> str:
    """Add the size of a published file, if known."""
    address = next((word.strip(";,") for word in message.split() if word.startswith("https://")), None)
    with suppress(OSError, ValueError, TypeError):
        request: Any = urllib.request.Request(str(address), method="HEAD")
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            if "html" not in answer.headers["Content-Type"]:
                return f"{message} ({format_size(int(answer.headers['Content-Length']))})"
    return message


def find_data(recipe: schema.Recipe) -> Data:
    paths = {source.manifest for source in recipe.data.values() if Path(source.manifest).exists()}
    listed = {path: read_manifest(Path(path)) for path in paths}
    return {name: _find(source, listed.get(source.manifest)) for name, source in recipe.data.items()}


def _find(source: schema.Source, listed: list[Clip] | None) -> Found:
    if listed is None:
        return Found(expected=source.expected)
    clips = list[Clip]()
    try:
        clips = of_split(listed, source.split, source.manifest)
        there = source.moments and Path(source.moments).exists()
        return Found(clips, moments_of(source, listed, clips) if there else ())
    except KitError as error:
        return Found(clips, fault=str(error))


def check(recipe: schema.Recipe, data: Data) -> Iterator[Line]:
    """Yield what a recipe has and needs."""
    audio = recipe.model.audio
    for name, source in recipe.data.items():
        yield from _source(f"data {name}", source, recipe.making(source), data[name], audio.reads_clips)
    needed = 0.0
    seconds = sum({(source.manifest, source.split): data[key].seconds for key, source in recipe.data.items()}.values())
    for name, expert in audio.experts.items():
        is_stored = expert.computed and expert.kind != "waveform"
        frame = expert.dim * np.dtype(expert.dtype).itemsize if is_stored else 0
        size = seconds * expert.frames_per_second * frame
        stored = f", {format_size(size)} in {recipe.banks}/" if size else ""
        yield Line(FACT, f"expert {name}", f"{expert.frame_description}{stored}")
        for source_name, found in data.items():
            if misfit := common_fault(expert, found.clips):
                yield Line(MISTAKE, f"expert {name}, data {source_name}", misfit)
        needed += size
    if needed > free_bytes(Path(recipe.banks)):
        yield Line(WARNING, recipe.banks, f"about {format_size(needed)} of frames do not fit; use another disk")
    yield from _model(recipe, data)
    for key, path in recipe.other_models.items():
        if fault := _error(trained_files, path):
            yield Line(MISSING, f"{key} {path}", fault)
    for name, stage in recipe.stages.items():
        yield from _stage(f"stage {name}", stage, data)
    yield from _rankings(recipe, data)


def _source(
    where: str, source: schema.Source, making: schema.Source, found: Found, reads_clips: bool
) -> Iterator[Line]:
    file, clips = f"{source.manifest} [{source.split}]", found.clips
    if found.fault:
        yield Line(MISTAKE, where, found.fault)
    elif not clips:
        yield from _missing_manifest(where, file, source.expected, making)
    if not clips:
        return
    sizes = [counted(len(clips), "clip", ","), counted(sum(len(clip.captions) for clip in clips), "caption", ",")]
    sizes += [f"{found.seconds / 3600:.2f} h", *([counted(len(found.moments), "moment", ",")] if found.moments else ())]
    yield Line(FACT, where, f"{file}  {', '.join(sizes)}")
    if few := few_clips(source, len(clips)):
        yield Line(MISSING, where, f"only {few}")
    some = clips[:: math.ceil(len(clips) / CHECKED_FILES)] if reads_clips else ()
    if absent := [clip.path for clip in some if not Path(clip.path).exists()]:
        counts = f"{len(absent):,} of {counted(len(some), 'audio file', ',')}"
        yield Line(MISSING, where, f"{counts} not found, first {absent[0]}; put them there, or make the manifest again")
    if source.moments and not Path(source.moments).exists():
        yield Line(MISSING, source.moments, "make this file with lbar data castella, or scenes --moments")


def _missing_manifest(where: str, file: str, expected: schema.Expected | None, source: schema.Source) -> Iterator[Line]:
    size = f", published: {expected.clips:,} clips, {expected.hours:.2f} h" if expected else ""
    at = f"published at {source.published}" if source.published else "the recipe does not say where it is published"
    if source.make is None:
        yield Line(FACT, where, f"{file}  missing{size}")
        yield Line(MISSING, source.manifest, f"put the manifest at this path; {at}")
        return
    try:
        absent = [str(path) for path in input_paths(source.make, Path(source.manifest)) if not path.exists()]
    except KitError as error:
        yield Line(MISTAKE, f"make of {source.manifest}", str(error))
        return
    yield Line(FACT, where, f"{file}  not made yet; `run` makes it with: {source.make}{size}")
    yield from (Line(MISSING, path, f"put this file or folder at its path; {at}") for path in absent)


def _model(recipe: schema.Recipe, data: Data) -> Iterator[Line]:
    model, unknown = recipe.model, set()  # sides that cannot be built yet
    for key, part in model.parts.items():
        for need in part.needs():
            if problem := need.problem():
                yield Line(MISSING, need.place, problem)
                unknown |= {key} if need.model or key == "text" else set()
    for side, encoder in model.encoders.items():
        folders = [str(folder) for need in encoder.needs() if need.model and (folder := need.folder())]
        yield Line(FACT, f"model {side}", ", in ".join([encoder.description, *folders]))
    for source, found in data.items():
        if fault := model.text.texts_fault([text for clip in found.clips for text in clip.captions]):
            yield Line(MISTAKE, f"text, data {source}", fault)
    if model.text.reads_vocabulary:
        learned = all(path.exists() for path in recipe.learned_from.values())
        unknown |= set() if learned and all(data[name].clips for name in recipe.trained_on) else {"text"}
    try:
        counts = trainable_parameters(recipe, data, unknown)
    except KitError as error:
        yield Line(MISTAKE, "model", str(error))
        return
    parts = [f"{name} {count:,}" for name, count in counts.items()]
    parts += [f"{side} unknown until its files are here" for side in model.encoders if side in unknown - counts.keys()]
    yield Line(FACT, "parameters", f"{', '.join(parts)}; {sum(counts.values()):,} trainable in total")


def trainable_parameters(recipe: schema.Recipe, data: Data, unknown: Collection[str] = ()) -> dict[str, int]:
    """Count the trainable parameters of each part of the model.

    Args:
        unknown: Sides of the model, audio or text, that cannot be built.
    """
    model = recipe.model
    parts: dict[str, Any] = {} if "audio" in unknown else model.audio.build(model.text.dim).parts()
    if not model.text.is_trained:
        parts["text"] = nn.Identity()
    elif "text" not in unknown:
        words = training_vocabulary(recipe, {name: found.clips for name, found in data.items()})
        parts["text"] = model.text.build(words, Path(recipe.banks))
    return trainable_numbers(parts, model.score.build(model.text.dim))


def _stage(where: str, stage: schema.Stage, data: Data) -> Iterator[Line]:
    steps = steps_per_epoch(stage, data)
    updates = f"{stage.epochs * steps:,} updates" if steps else "unknown number of updates"
    yield Line(FACT, where, f"{updates} of {stage.batch_size} {stage.unit}s from {' + '.join(stage.train.data)}")
    if 0 < (items := _count(stage.train.data, stage.unit, data)) < stage.batch_size:
        yield Line(MISTAKE, where, f"batch_size {stage.batch_size} is above the {counted(items, 'item')}; lower it")
    if stage.unit != "moment" and _count(stage.monitor.data, "clip", data) == 1:
        yield Line(MISTAKE, where, "validation needs two clips with captions, not 1; change monitor.data")
    moments = [moment for source in stage.sources for moment in data[source].moments]
    if stage.unit == "moment" and (fault := _error(require_known_windows, moments)):
        yield Line(MISTAKE, where, fault)
    trained = [clip for source in stage.train.data for clip in data[source].clips]
    if stage.augment and trained and (fault := _error(Augmentation, stage.augment, trained)):
        yield Line(MISTAKE, f"{where} augment", fault)


def _error(function: Callable[..., object], *arguments: object) -> str:
    """Return the text of the KitError that a call raises."""
    try:
        function(*arguments)
    except KitError as error:
        return str(error)
    return ""


def steps_per_epoch(stage: schema.Stage, data: Data) -> int:
    """Return the steps of an epoch; 0 if unknown."""
    if stage.steps_per_epoch != "all":
        return stage.steps_per_epoch
    return _count(stage.train.data, stage.unit, data) // stage.batch_size


def _count(sources: Sequence[str], unit: str, data: Data) -> int:
    """Return the number of items of sources; 0 if unknown."""
    counts = [data[source].items(unit) for source in sources]
    return sum(counts) if all(counts) else 0


def _rankings(recipe: schema.Recipe, data: Data) -> Iterator[Line]:
    for name, entry in recipe.rank.items():
        missing = " and ".join(recipe.awaited_files(name))
        absent = f"; skipped until {missing} exist" if missing else ""
        text = f"{recipe.ranked(name).pool[0]} ranked by {entry.kind}, edition {entry.edition}{absent}"
        yield Line(FACT, f"rank {name}", text)
    for name, entry in recipe.scored.items():
        clips = len(data[recipe.ranked_source(name)].clips)
        edition = get_edition(entry.edition).for_pool(clips)
        if entry.csv and edition.output == "ranked" and 0 < clips < edition.ranking_length:
            fault = f"a ranked CSV needs {edition.ranking_length} clips, not {clips}; set csv: false"
            yield Line(MISTAKE, f"rank {name}", fault)
