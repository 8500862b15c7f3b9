"""The plan of a recipe: its data, missing files, parameters, memory, disk, hours."""

import math
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from data_tools.cli import about, counted
from data_tools.datasets.download import FETCH_AGAIN, content_problem, file_problem
from data_tools.errors import KitError
from data_tools.manifest import Clip, in_split, read_manifest
from data_tools.moments import read_moments
from submission.editions import get_edition
from system.batches.augment import Augmentation
from system.features.there import seconds_lacking
from system.plan.estimates import ASSUMED_VOCABULARY, CORE_FLOPS, GPUS, Content, Estimates
from system.plan.machine import GIB, WARNING, disk_warnings
from system.plan.processes import hours_line, process_lines, share_of
from system.ranking.checkpoint import RankBlind
from system.recipe import schema
from system.recipe.manifests import few_clips, input_paths
from system.runs.weights import trained_files

LARGEST_MEMORY = 8192 * GIB
LOOKED_AT = 1000  # most audio files of a source that are checked
MEMORY_SHARE = 0.8  # that an estimate may use; CUDA and its cache, or Python and torch, need the rest
MISSING = "MISSING"  # inputs that `run` does not make
MISTAKE = "MISTAKE:"  # existing data that do not fit the recipe

_TRAIN_FIRST = "train it first, or name the folder of a run or of an exported model"


def find_data(recipe: schema.Recipe) -> dict[str, Content]:
    """Read the manifests and moments whose files exist."""
    paths = {source.manifest for source in recipe.data.values() if Path(source.manifest).exists()}
    read = {path: read_manifest(path) for path in paths}
    moments = {source.moments for source in recipe.data.values() if source.moments}
    asked = {path: read_moments(path) for path in moments if Path(path).exists()}
    found = {}
    for name, source in recipe.data.items():
        clips, texts = in_split(read.get(source.manifest, []), source.split), None
        if source.moments in asked:
            ids = {clip.id for clip in clips}
            texts = [moment.text for moment in asked[source.moments] if moment.clip in ids]
        found[name] = Content(clips, source.expected, texts)
    return found


def plan(
    recipe: schema.Recipe,
    gpu_bytes: float | None = None,
    memory_bytes: float | None = None,
    runs: Path | None = None,
    copies: int = 1,
    made_before: Collection[Path] = (),
    processes: int = 1,
    gpu: str | None = None,
) -> str:
    """Return the plan as text.

    Args:
        gpu_bytes: memory of the GPU for the stages; None for no GPU.
        memory_bytes: memory of the machine, for stages without a GPU; None: not known.
        runs: folder of the run; None: do not check the disk.
        copies: number of such runs that are not finished.
        made_before: folders of runs that come before this one.
        processes: number of processes of torchrun.
        gpu: name of the GPU of each process; None: all known ones.
    """
    found = find_data(recipe)
    estimates = Estimates(recipe, found)
    lines = [f"recipe {recipe.name}, seed {recipe.seed}", *_data_lines(recipe, found)]
    lines += [*_expert_lines(recipe, estimates), *_parameter_lines(recipe, estimates)]
    lines += _teacher_lines(recipe, made_before)
    for name, stage in recipe.stages.items():
        lines += _stage_lines(name, stage, found, made_before)
        lines += _augment_lines(stage, found)
        if estimates.unknown:
            continue
        lines += _rate_lines(stage.optimizer, estimates.parameters_by_part, _updates(stage, found))
        lines += _cost_lines(stage, estimates, gpu_bytes, memory_bytes)
        lines += process_lines(stage, estimates, processes, gpu) if processes > 1 else ()
    to_come = _seconds_to_come(recipe, estimates)
    lines += [*_rank_lines(recipe, found), _hours_line(recipe, estimates, found, to_come)]
    lines += _hours_of_processes(recipe, estimates, found, to_come, processes, gpu) if processes > 1 else ()
    lines += _disk_lines(recipe, estimates, to_come, runs, copies) if runs else ()
    counts = {word.strip(":"): sum(word in line for line in lines) for word in (WARNING, MISSING, MISTAKE)}
    said = [f"{count} of these lines say{'s' if count == 1 else ''} {word}" for word, count in counts.items() if count]
    whole = not any(word in line for line in lines for word in (MISSING, MISTAKE))
    return "\n".join([*lines, *said, *(["nothing is missing"] if whole else [])])


def _data_lines(recipe: schema.Recipe, found: dict[str, Content]) -> Iterator[str]:
    shown: set[str] = set()
    for name, source in recipe.data.items():
        content = found[name]
        absent = [] if Path(source.manifest).exists() else list(_missing_inputs(source))
        if content.clips:
            clips, captions = len(content.clips), content.captions
            fact = f"{counted(clips, 'clip', ',')}, {counted(captions, 'caption', ',')}, {content.hours:.2f} h"
            if few := few_clips(source, clips):
                fact += f"; {MISSING}: only {few}"
            elif (published := source.expected) and (published.clips, published.captions) != (clips, captions):
                fact += f" (published: {published.clips:,} clips, {published.captions:,} captions)"
            if silent := content.silent:
                fact += f"; MISSING: audio of {counted(silent, 'clip', ',')}, which python -m data_tools check names"
            fact += _absent_audio(content.clips)
        elif Path(source.manifest).exists():
            fact = f"MISSING: no clip of split {source.split} in it"
        elif source.make and not absent:
            fact = f"not there yet; `run` makes it with: {source.make}"
        else:
            fact = "MISSING" + (f"; make it with: {source.make}" if source.make else "")
        yield f"data {name}: {source.manifest} [{source.split}] {fact}{_moments_fact(source, content)}"
        if source.make not in shown:
            yield from absent
            shown.add(source.make or "")


def _absent_audio(clips: Sequence[Clip]) -> str:
    """Report missing audio files, of all clips or of about LOOKED_AT evenly spread ones."""
    some = clips[:: max(1, math.ceil(len(clips) / LOOKED_AT))]
    absent = [clip.path for clip in some if not Path(clip.path).exists()]
    if not absent:
        return ""
    looked_at = "" if len(some) == len(clips) else f" of {len(some):,} looked at"
    where = f"{counted(len(absent), 'audio file', ',')}{looked_at}, first {absent[0]}"
    return f"; MISSING: {where}; put them there, or make the manifest again where they are"


def _moments_fact(source: schema.Source, content: Content) -> str:
    if source.moments is None or not content.clips:
        return ""
    if content.moments is None:
        return f"; MISSING: moments {source.moments}; python -m data_tools castella or scenes --moments makes it"
    none = f"; {MISTAKE} none in {source.moments} is of these clips"
    return f", {counted(len(content.moments), 'moment', ',')}" if content.moments else none


def _missing_inputs(source: schema.Source) -> Iterator[str]:
    """Yield lines on missing files and folders that the source's command reads."""
    if source.make is None:
        if source.published:
            yield f"  published at {source.published}"
        return
    try:
        missing = [str(path) for path in input_paths(source.make) if not path.exists()]
    except KitError as error:
        yield f"  {MISTAKE} {error}"
        return
    if missing:
        yield f"  {', '.join(missing)} MISSING; published at {source.published or 'a place the recipe does not name'}"


def _expert_lines(recipe: schema.Recipe, estimates: Estimates) -> Iterator[str]:
    seconds = estimates.audio_seconds()
    experts = recipe.model.audio.experts
    disk = {name: size / GIB for name, size in estimates.bank_bytes.items()}
    for name, expert in experts.items():
        rate = f"{expert.frames_per_second:.2f} frames/s at {expert.rate} Hz"
        size = f"{disk[name]:.2f} GiB in {recipe.banks}/, {about(seconds * expert.cost)} on two CPU cores"
        yield f"expert {name}: {expert.dim}-d, {rate}, {size if seconds else 'disk unknown until the data is there'}"
        if missing := [str(path) for path in expert.weight_files().values() if not path.is_file()]:
            yield f"  {', '.join(missing)} MISSING; {expert.weight_source()}"
        for path in expert.weight_files().values():
            if path.is_file() and (problem := content_problem(path) or file_problem(path)):
                yield f"  {path} {problem}: MISSING; {FETCH_AGAIN}"
        for setting in expert.unpublished():
            hint = "its checksum is another; python -m system download RECIPE fetches that one where it is deleted"
            yield f"  {WARNING} {expert.weight_files()[setting]} is not the published file: {hint}"
    if seconds:
        duration = about(seconds * sum(expert.cost for expert in experts.values()))
        totals = f"{sum(disk.values()):.2f} GiB, {duration} on two CPU cores"
        yield f"banks: {seconds / 3600:.2f} h of audio, {totals} (estimates); what is there already is not made again"


def _parameter_lines(recipe: schema.Recipe, estimates: Estimates) -> Iterator[str]:
    audio = recipe.model.audio
    yield from audio.plan_lines()
    yield from recipe.model.text.plan_lines()
    if estimates.unknown:
        yield f"trainable parameters, memory and time of a step: unknown: {estimates.unknown}"
        return
    parts = estimates.parameters_by_part
    named = [f"{name if name == 'text' else audio.part_name(name)} {count:,}" for name, count in parts.items()]
    assumed = f" ({ASSUMED_VOCABULARY:,} words assumed: no captions yet)" if estimates.assumes_vocabulary else ""
    yield f"trainable parameters: {', '.join(named)}; in all {sum(parts.values()):,}{assumed}"


def _trained_model(folder: Path, made_before: Collection[Path]) -> str:
    """Return the end of a line on a trained model of the recipe: whether it exists."""
    if folder in made_before:
        return ", which comes before this run"
    try:
        trained_files(folder)
    except KitError as error:
        begun = (folder / "resolved.json").exists()
        return f" MISSING: {error}" if begun else f" MISSING; {_TRAIN_FIRST}"
    return ""


def _teacher_lines(recipe: schema.Recipe, made_before: Collection[Path]) -> Iterator[str]:
    for name, teacher in recipe.teachers.items():
        if isinstance(teacher, schema.ModelTeacher):
            yield f"teacher {name}: {teacher.folder}{_trained_model(Path(teacher.folder), made_before)}"
        elif isinstance(teacher, schema.EmbeddingsTeacher):
            missing = "" if Path(teacher.file).is_file() else " MISSING; write it with python -m system embeddings"
            yield f"teacher {name}: embeddings in {teacher.file}{missing}"
        else:
            yield f"teacher {name}: stage {teacher.stage} of this run"


def _updates(stage: schema.Stage, found: dict[str, Content]) -> int | None:
    """Return the number of updates of all epochs, by existing or expected data; None if neither is known."""
    if stage.steps_per_epoch != "all":
        return stage.epochs * stage.steps_per_epoch
    items = [found[source].expected_items(stage.unit) for source in stage.train.data]
    return stage.epochs * (sum(items) // stage.batch_size) if all(items) else None


def _seconds_to_come(recipe: schema.Recipe, estimates: Estimates) -> dict[str, float]:
    """Return the seconds of audio whose frames are missing, by expert."""
    lacking = seconds_lacking(estimates.clips(), recipe.model.audio.experts, Path(recipe.banks))
    return {name: estimates.absent_seconds() + seconds for name, seconds in lacking.items()}


def _hours_line(
    recipe: schema.Recipe,
    estimates: Estimates,
    found: dict[str, Content],
    to_come: dict[str, float],
) -> str:
    """Return the line on the total duration."""
    seconds, cores = estimates.audio_seconds(), os.cpu_count() or 1
    if not seconds or any(_updates(stage, found) is None for stage in recipe.stages.values()):
        return "in all: hours not known until the data is there"
    if estimates.unknown:
        return "in all: hours unknown until the model is on this machine"
    steps = [(_updates(stage, found), estimates.step_flops(stage)) for stage in recipe.stages.values()]
    training = sum((updates or 0) * flops for updates, flops in steps) / (cores * CORE_FLOPS)
    frames = sum(to_come[name] * expert.cost for name, expert in recipe.model.audio.experts.items())
    making = f"{about(frames)} for frames that are not there yet" if frames else "all frames are there"
    parts = f"{making}, {about(training)} for updates"
    line = f"in all: {about(frames + training)} on this CPU's {cores} cores, {parts} (estimates, without validation)"
    if all(stage.precision == "float32" for stage in recipe.stages.values()):
        return line
    total = sum((updates or 0) * flops for updates, flops in steps)
    speeds = ", ".join(f"{about(total / gpu.flops)} on an {name}" for name, gpu in GPUS.items())
    return f"{line}; updates alone {speeds} (their speeds are assumed, not measured)"


def _hours_of_processes(
    recipe: schema.Recipe,
    estimates: Estimates,
    found: dict[str, Content],
    to_come: dict[str, float],
    processes: int,
    gpu: str | None,
) -> Iterator[str]:
    """Yield the line on the duration with several processes; no line if that of one process is not known."""
    updates = [_updates(stage, found) for stage in recipe.stages.values()]
    if not estimates.audio_seconds() or None in updates or estimates.unknown:
        return
    frames = sum(to_come[name] * expert.cost for name, expert in recipe.model.audio.experts.items())
    flops = sum(
        (count or 0) * estimates.flops_of(share_of(stage, estimates, processes), stage.grad_cache_chunk)
        for count, stage in zip(updates, recipe.stages.values(), strict=True)
    )
    yield hours_line(frames, flops, processes, gpu)


def _disk_lines(
    recipe: schema.Recipe, estimates: Estimates, to_come: dict[str, float], runs: Path, copies: int
) -> Iterator[str]:
    """Yield lines on the disk space of checkpoints, and warnings for full disks."""
    banks, size = Path(recipe.banks), 0.0 if estimates.unknown else copies * estimates.run_bytes
    named = "the run" if copies == 1 else f"{copies} runs"
    if copies and not estimates.unknown:
        yield f"checkpoints of {named}: at most {size / GIB:.2f} GiB in {runs}/ (estimate)"
    seconds = estimates.audio_seconds() or 1.0
    frames = sum(estimates.bank_bytes[name] * to_come[name] / seconds for name in to_come)
    yield from disk_warnings({banks: frames, runs: size})


def _stage_lines(
    name: str, stage: schema.Stage, found: dict[str, Content], made_before: Collection[Path]
) -> Iterator[str]:
    items = [found[source].items(stage.unit) for source in stage.train.data]
    known = all(items)
    count = _updates(stage, found)
    updates = "unknown number of" if count is None else f"{count:,}"
    seen = "" if count is None else f", {count * stage.batch_size:,} {stage.unit}s seen"
    sizes = " + ".join(
        f"{source} {count:,}" if count else f"{source} (missing)"
        for source, count in zip(stage.train.data, items, strict=True)
    )
    each = "1 caption" if stage.captions_per_clip == 1 else f"{stage.captions_per_clip} captions"
    captions = f", {each} a clip" if stage.unit == "clip" else ""
    what = f"{updates} updates of {stage.batch_size} {stage.unit}s{captions}{seen}"
    yield f"stage {name}: {what}; from {sizes}, mixed by {stage.train.mix}"
    if known and sum(items) < stage.batch_size:
        yield f"  {MISTAKE} batch_size {stage.batch_size} is more than the {counted(sum(items), 'item')} there are"
    watched = sum(found[source].items("clip") for source in stage.monitor.data)
    if stage.unit != "moment" and all(found[source].clips for source in stage.monitor.data) and watched < 2:
        yield f"  {MISTAKE} it is watched on {counted(watched, 'clip')} with captions, and needs two"
    if isinstance(stage.start_from, schema.FromModel):
        yield f"  starts from {stage.start_from.folder}{_trained_model(Path(stage.start_from.folder), made_before)}"


def _augment_lines(stage: schema.Stage, found: dict[str, Content]) -> Iterator[str]:
    """Yield the line on changes of training data, with notes on the files' fit if the clips are known."""
    if stage.augment is None:
        return
    fact = ""
    if missing := [name for name in stage.augment.files() if not Path(name).exists()]:
        fact = f"; {', '.join(missing)} MISSING; correct the path"
    elif all(found[source].clips for source in stage.train.data):
        try:
            clips = [clip for source in stage.train.data for clip in found[source].clips]
            fact = "".join(f"; {note}" for note in Augmentation(stage.augment, clips).notes)
        except KitError as error:
            fact = f"; {MISTAKE} {error}"
    yield f"  augment: {stage.augment.in_words()}{fact}"


def _rate_lines(settings: schema.AdamW, parts: dict[str, int], updates: int | None) -> Iterator[str]:
    """Yield lines on the learning rates of parts, and on parts that are frozen at the start.

    parts: their numbers of trainable parameters. updates: of the stage.
    """
    counts = {"audio": sum(parts.values()) - parts["text"], **parts}
    rest = sum(parts.values()) - sum(counts[name] for name in settings.lr_by_part)
    if settings.lr_by_part:
        rates = [f"{name} {rate:g} ({counts[name]:,} parameters)" for name, rate in settings.lr_by_part.items()]
        yield f"  learning rates: {', '.join(rates)}, the rest {settings.lr:g} ({rest:,} parameters)"
    for name, steps in settings.frozen_start.items():
        whole = ", which are all of its updates" if updates is not None and steps >= updates else ""
        yield f"  {name} ({counts[name]:,} parameters) is frozen for the first {steps:,} steps{whole}"


def _cost_lines(
    stage: schema.Stage, estimates: Estimates, gpu_bytes: float | None, memory_bytes: float | None
) -> Iterator[str]:
    """Yield lines on memory and time of a step. Times on GPUs are only for 16 bits, like the GPUs' speeds."""
    cpu, gpu = (estimates.memory(stage, precision) for precision in ("float32", stage.precision))
    on_gpu = f", {gpu / GIB:.1f} GiB on a GPU in {stage.precision}" if stage.precision != "float32" else ""
    if cpu > LARGEST_MEMORY:
        yield f"  {MISTAKE} a step would take {cpu / GIB:,.0f} GiB, which no machine has; make layers or batch smaller"
    kept = f"its clips' frames, kept on a GPU with twice the room: {estimates.frame_bytes(stage) / GIB:.1f} GiB"
    if stage.augment and stage.augment.mix:
        kept = "its clips' frames are read from the banks at every step, since they are mixed"
    yield f"  memory: about {cpu / GIB:.1f} GiB in float32{on_gpu}, beside Python and torch (estimate); {kept}"
    if gpu_bytes is not None and gpu > MEMORY_SHARE * gpu_bytes:
        yield _will_not_fit(stage, estimates, "the GPU", gpu_bytes)
    if gpu_bytes is None and memory_bytes is not None and cpu > MEMORY_SHARE * memory_bytes:
        in_float32 = stage.model_copy(update={"precision": "float32"})
        yield _will_not_fit(in_float32, estimates, "this machine", memory_bytes)
    flops, cores = estimates.step_flops(stage), os.cpu_count() or 1
    times = [f"{about(flops / (cores * CORE_FLOPS))} on this CPU's {cores} cores"]
    if stage.precision != "float32":
        times += [f"{1000 * flops / gpu.flops:.0f} ms on an {name}" for name, gpu in GPUS.items()]
    yield f"  a step: {flops / 1e12:.2f} TFLOP, {', '.join(times)} (estimates; not measured on a GPU)"


def _will_not_fit(stage: schema.Stage, estimates: Estimates, where: str, size: float) -> str:
    by_parts = estimates.recipe.model.embeds_by_parts
    smaller = estimates.grad_cache_that_fits(stage, MEMORY_SHARE * size) if by_parts else None
    cached = f"set grad_cache_chunk to {smaller}, which gives the same gradients in a third more time"
    hint = cached if smaller else "lower batch_size"
    return f"  {WARNING} batch_size {stage.batch_size} will not fit {where}'s {size / GIB:.1f} GiB: {hint}"


def _rank_lines(recipe: schema.Recipe, found: dict[str, Content]) -> Iterator[str]:
    for name, entry in recipe.rank.items():
        ranked = recipe.ranked(name)
        if isinstance(ranked, RankBlind):
            yield f"rank {name}: {ranked.audio} {entry.how}, edition {entry.edition}"
            if ranked.absent:
                yield f"  {' and '.join(ranked.absent)} not there yet; `run` ranks the blind set later"
            continue
        yield f"rank {name}: {ranked.data} {entry.how}, edition {entry.edition}"
        if entry.finds_windows:
            continue
        clips = len(found[ranked.data].clips)
        edition = get_edition(entry.edition).for_pool(clips)
        if entry.csv and edition.output == "ranked" and 0 < clips < edition.ranking_length:
            listed = f"a ranked CSV lists {edition.ranking_length} clips"
            yield f"  {MISTAKE} {listed}, {ranked.data} has {clips}; say csv: false"
