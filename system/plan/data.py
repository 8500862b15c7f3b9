"""Data and features of a plan.

Rows of a plan on its data sources and experts, and a problem for each missing or wrong file.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from data_tools.cli import about, counted
from data_tools.datasets.download import cure_of
from data_tools.errors import KitError
from data_tools.manifest import Clip, of_split, read_manifest
from data_tools.moments import Moment, read_moments
from system.batches.sampler import require_known_windows
from system.experts.base import some_file_faults
from system.plan.content import Content
from system.plan.estimates import Estimates
from system.plan.lines import MISSING, MISTAKE, WARNING, Problem, Row
from system.plan.machine import GIB
from system.recipe import schema
from system.recipe.manifests import few_clips, input_paths, require_output

CHECKED_FILES = 1000  # most audio files of a source that are checked


def find_data(recipe: schema.Recipe) -> dict[str, Content]:
    """Return a dict from data source to its clips and moments, as far as their files exist."""
    paths = {source.manifest for source in recipe.data.values() if Path(source.manifest).exists()}
    manifests = {path: read_manifest(path) for path in paths}
    contents = {}
    for name, source in recipe.data.items():
        listed, queries = manifests.get(source.manifest, []), None
        clips = [clip for clip in listed if clip.split == source.split]
        fault = _fault_of(source, listed) if listed else ""
        if listed and source.moments and Path(source.moments).exists() and not fault:
            ids = {clip.id for clip in clips}
            try:
                queries = [moment for moment in read_moments(source.moments, listed) if moment.clip in ids]
            except KitError as error:
                fault = str(error)
        contents[name] = Content(clips, source.expected, queries, fault)
    return contents


def _fault_of(source: schema.Source, clips: list[Clip]) -> str:
    """Return the reason why a data source's split does not fit its manifest; "" if it fits."""
    try:
        of_split(clips, source.split, source.manifest)
    except KitError as error:
        return str(error)
    return ""


def data_lines(recipe: schema.Recipe, contents: dict[str, Content]) -> Iterator[Row | Problem]:
    """Yield one row of a plan per data source, and a problem for each missing or wrong file."""
    for name, source in recipe.data.items():
        content, file = contents[name], f"{source.manifest} [{source.split}]"
        if content.clips:
            yield Row("data", name, f"{file}  {_describe_size(source, content)}")
            yield from _problems_of_clips(name, source, content, recipe.model.audio.reads_clips)
            yield from _problems_of_windows(recipe, name, content.moments or ())
        elif Path(source.manifest).exists():
            yield Row("data", name, f"{file}  no clips")
            yield Problem(MISSING, f"data {name}", content.fault)
        else:
            yield from _missing_manifest_lines(name, file, source)


def _describe_size(source: schema.Source, content: Content) -> str:
    """Describe the size of a data source: its numbers of clips, captions, hours and moments, as text."""
    clips, captions = len(content.clips), content.captions
    sizes = f"{counted(clips, 'clip', ',')}, {counted(captions, 'caption', ',')}, {content.hours:.2f} h"
    if content.moments:
        sizes += f", {counted(len(content.moments), 'moment', ',')}"
    published = source.expected
    if published and not few_clips(source, clips) and (published.clips, published.captions) != (clips, captions):
        sizes += f" (published: {published.clips:,} clips, {published.captions:,} captions)"
    return sizes


def _problems_of_clips(name: str, source: schema.Source, content: Content, is_read: bool) -> Iterator[Problem]:
    """Yield the problems of a data source, such as missing clips, audio or moments.

    is_read: Whether the model reads audio, so that missing audio is a problem.
    """
    where = f"data {name}"
    if few := few_clips(source, len(content.clips)):
        yield Problem(MISSING, where, f"only {few}")
    absent = _describe_missing_audio(content.clips) if is_read else ""
    unknown = content.without_length if is_read else 0
    if unknown and absent:
        message = f"the audio of {counted(unknown, 'clip', ',')} is missing; lbar data check lists them"
        yield Problem(MISSING, where, message)
    elif unknown:
        message = (
            f"{counted(unknown, 'clip', ',')} without a length: the plan's hours and disk space are too low; add "
            "seconds to the manifest, or make it again"
        )
        yield Problem(WARNING, where, message)
    if absent:
        yield Problem(MISSING, where, absent)
    if content.fault:
        yield Problem(MISTAKE, where, content.fault)
    elif source.moments is not None and content.moments is None:
        message = f"the moments file {source.moments} is missing; make it with lbar data castella or scenes --moments"
        yield Problem(MISSING, where, message)
    elif content.moments == []:
        message = (
            f"{source.moments} has no moment of the source's clips; name the moments file that was made with "
            f"{source.manifest}"
        )
        yield Problem(MISTAKE, where, message)


def _problems_of_windows(recipe: schema.Recipe, name: str, moments: Sequence[Moment]) -> Iterator[Problem]:
    """Yield a problem if a stage or rank entry cannot use the windows of a data source's moments."""
    stages = [stage for stage in recipe.stages.values() if stage.unit == "moment"]
    validated = any(name in stage.monitor.data for stage in stages)
    try:
        if validated or any(name in stage.train.data for stage in stages):
            require_known_windows(moments)
    except KitError as error:
        yield Problem(MISTAKE, f"data {name}", str(error))


def _describe_missing_audio(clips: Sequence[Clip]) -> str:
    """Describe how many audio files of the clips are missing, with a cure; "" if none is missing.

    If the data source has many clips, about CHECKED_FILES of them, evenly spread, are checked.
    """
    some = clips[:: max(1, math.ceil(len(clips) / CHECKED_FILES))]
    absent = [clip.path for clip in some if not Path(clip.path).exists()]
    if not absent:
        return ""
    checked = "" if len(some) == len(clips) else f" of {len(some):,} checked"
    return (
        f"{counted(len(absent), 'audio file', ',')}{checked} not found, first {absent[0]}; put the files at these "
        "paths, or make the manifest again with their new paths"
    )


def _missing_manifest_lines(name: str, file: str, source: schema.Source) -> Iterator[Row | Problem]:
    """Yield the plan's row and the problems of a data source whose manifest is missing."""
    problems = list(_missing_inputs(source))
    if source.make and not problems:
        yield Row("data", name, f"{file}  not made yet; `run` makes it with: {source.make}")
        return
    yield Row("data", name, f"{file}  missing")
    yield from problems
    cure = f"make the manifest with: {source.make}" if source.make else "put the manifest at this path"
    yield Problem(MISSING, source.manifest, cure)


def _missing_inputs(source: schema.Source) -> Iterator[Problem]:
    """Yield a problem for each missing file or folder that the source's `make` command reads."""
    if source.make is None:
        if source.published:
            yield Problem(MISSING, f"audio of {source.manifest}", f"published at {source.published}")
        return
    try:
        missing = [str(path) for path in input_paths(source.make) if not path.exists()]
        require_output(source.make, Path(source.manifest))
    except KitError as error:
        yield Problem(MISTAKE, f"make of {source.manifest}", str(error))
        return
    unnamed = "put this file or folder at its path; the recipe does not state where it is published"
    cure = f"published at {source.published}" if source.published else unnamed
    yield from (Problem(MISSING, path, cure) for path in missing)


def file_problems(recipe: schema.Recipe, contents: dict[str, Content]) -> Iterator[Problem]:
    """Yield problems of captions and audio files that do not fit the model's settings.

    Only some audio files of each data source are read.
    """
    for source, content in contents.items():
        if unknown := recipe.model.text.texts_fault([text for clip in content.clips for text in clip.captions]):
            yield Problem(MISTAKE, f"text, data {source}", unknown)
    for name, expert in recipe.model.audio.experts.items():
        for source, content in contents.items():
            found, of_all = some_file_faults(expert, content.clips)
            if of_all:
                yield Problem(MISTAKE, f"expert {name}", of_all)
                break
            for is_certain, text in dict(reversed(found)).items():  # the first of each kind
                yield Problem(MISTAKE if is_certain else WARNING, f"expert {name}, data {source}", text)


def feature_lines(recipe: schema.Recipe, estimates: Estimates) -> Iterator[Row | Problem]:
    """Yield a plan's rows on the experts and their frames, and problems of the experts' weight files."""
    seconds = estimates.audio_seconds()
    experts = recipe.model.audio.experts
    disk = {name: size / GIB for name, size in estimates.bank_bytes.items()}
    for name, expert in experts.items():
        if estimates.decodes_files:
            files = (
                f"{expert.rate} Hz, decoded from the audio files for each batch; nothing is stored in {recipe.banks}/"
            )
            yield Row("features", name, files)
            continue
        size = f"{disk[name]:.2f} GiB in {recipe.banks}/, {about(seconds * expert.cost)} on two CPU cores"
        licence = f", licence of the weights: {expert.licence}" if expert.licence else ""
        known = size if seconds else "disk space unknown until the data is on this machine"
        yield Row(
            "features",
            name,
            f"{expert.frame_description}, {known}{licence}" if expert.reads_clips else expert.frame_description,
        )
        if expert.pretrained and not expert.parameters:
            problem = "model_parameters is 0, so a submission will not count this expert's parameters; set their number"
            yield Problem(WARNING, f"expert {name}", problem)
        for path in expert.weight_files().values():
            if cure := cure_of(path, expert.weight_source()):
                yield Problem(MISSING, str(path), cure)
        for setting in expert.settings_with_changed_weights():
            cure = "the file's checksum is not the published one; delete the file and run lbar download RECIPE"
            yield Problem(WARNING, str(expert.weight_files()[setting]), cure)
    if seconds and not estimates.decodes_files:
        duration = about(seconds * sum(expert.cost for expert in experts.values()))
        totals = f"{seconds / 3600:.2f} h of audio, {sum(disk.values()):.2f} GiB, {duration} on two CPU cores"
        yield Row("features", "all", f"{totals} (estimates; stored frames are not computed again)")
