"""The plan of a recipe: what it would train on and for how long, what is missing, disk and memory. Never imports
torch."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_tools.manifest import Clip, read_manifest
from submission.editions import get_edition
from system import schema
from system.options import add_recipe_arguments, load_from
from system.words import vocabulary_of

BYTES = 4  # of a float32
GIB = 1 << 30
MISTAKE = "MISTAKE:"  # data that is there and does not fit the recipe
WORDS = 24  # in the longest caption of a batch, to which the others are filled
ASSUMED_SECONDS = 20.0  # length of a clip, and size of the vocabulary, where no data is there to measure them
ASSUMED_VOCABULARY = 4_000


@dataclass(frozen=True)
class Found:
    """What a source's manifest tells; clips is empty when it is missing."""

    clips: list[Clip]

    @property
    def captions(self) -> int:
        return sum(len(clip.captions) for clip in self.clips)

    @property
    def hours(self) -> float:
        return sum(clip.seconds or 0.0 for clip in self.clips) / 3600

    def items(self, unit: str) -> int:
        return self.captions if unit == "pair" else sum(bool(clip.captions) for clip in self.clips)


def find_data(recipe: schema.Recipe) -> dict[str, Found]:
    """Read the manifests that are there."""
    paths = {source.manifest for source in recipe.data.values() if Path(source.manifest).exists()}
    read = {path: read_manifest(path) for path in paths}
    return {
        name: Found([clip for clip in read.get(source.manifest, []) if clip.split == source.split])
        for name, source in recipe.data.items()
    }


def plan(recipe: schema.Recipe) -> str:
    """The plan as text."""
    found = find_data(recipe)
    parts = [
        [f"recipe {recipe.name}, seed {recipe.seed}"],
        _data_lines(recipe, found),
        _expert_lines(recipe, found),
        _parameter_lines(recipe, found),
        *(_stage_lines(recipe, name, found) for name in recipe.stages),
        _rank_mistakes(recipe, found),
        [
            f"rank {name}: {entry.data} by the {'last' if entry.checkpoint == 'last' else f'best {entry.checkpoint}'} "
            f"checkpoint of {entry.stage}, edition {entry.edition}"
            for name, entry in recipe.rank.items()
        ],
    ]
    return "\n".join(line for part in parts for line in part)


def _data_lines(recipe: schema.Recipe, found: dict[str, Found]) -> Iterator[str]:
    for name, source in recipe.data.items():
        own = found[name]
        if own.clips:
            fact = f"{len(own.clips):,} clips, {own.captions:,} captions, {own.hours:.2f} h"
        elif Path(source.manifest).exists():
            fact = f"MISSING: no clip of split {source.split} in it"
        else:
            fact = f"MISSING; make it with: {source.make or 'python -m data_tools (see its help)'}"
        yield f"data {name}: {source.manifest} [{source.split}] {fact}"


def _expert_lines(recipe: schema.Recipe, found: dict[str, Found]) -> Iterator[str]:
    clips = {clip.id: clip for own in found.values() for clip in own.clips}
    seconds = sum(clip.seconds or 0.0 for clip in clips.values())
    for name, expert in recipe.model.audio.experts.items():
        frames_bytes = seconds * expert.frames_per_second * expert.dim * 2
        state = "".join(
            f", weights {path}" + ("" if path.is_file() else f" MISSING; {expert.weight_source()}")
            for path in expert.weight_files().values()
        )
        size = (
            f"{frames_bytes / GIB:.2f} GiB of disk in {recipe.banks}/"
            if seconds
            else "disk unknown until the data is there"
        )
        rate = f"{expert.frames_per_second:.2f} frames/s at {expert.rate} Hz"
        yield f"expert {name}: {expert.dim}-d, {rate}, {size}{state}"


def head_parameters(audio: schema.ExpertHeads, dim: int, out: int) -> int:
    """Parameters of one expert's head: linear, encoder (see encoder_parameters), linear."""
    return (
        (dim + 1) * audio.width
        + encoder_parameters(audio.width, audio.layers, audio.ff, audio.positions)
        + (audio.width + 1) * out
    )


def encoder_parameters(width: int, layers: int, ff: int, positions: int) -> int:
    """Positions (two rows more than positions, as BART), a norm, and per layer attention, feed-forward and two
    norms."""
    layer = 4 * (width + 1) * width + (width + 1) * ff + (ff + 1) * width + 4 * width
    return (positions + 2) * width + 2 * width + layers * layer


def text_parameters(text: schema.Transformer | schema.SentenceTransformers, vocabulary: int) -> int | None:
    """Trainable parameters of the text side; None for a pre-trained encoder, whose size only its file tells."""
    if isinstance(text, schema.Transformer):
        words = (vocabulary + 1) * text.dim
        return words + encoder_parameters(text.dim, text.layers, text.ff, text.max_words) + (text.dim + 1) * text.dim
    if text.trainable:
        return None
    return (text.dim + 1) * text.dim if text.projection == "linear" else 0


def _vocabulary_size(recipe: schema.Recipe, found: dict[str, Found]) -> int:
    sources = {name for stage in recipe.stages.values() for name in stage.train.data}
    captions = (caption for name in sources for clip in found[name].clips for caption in clip.captions)
    return len(vocabulary_of(captions)) or ASSUMED_VOCABULARY


def _parameter_lines(recipe: schema.Recipe, found: dict[str, Found]) -> Iterator[str]:
    audio, text = recipe.model.audio, recipe.model.text
    heads = {name: head_parameters(audio, expert.dim, text.dim) for name, expert in audio.experts.items()}
    own = text_parameters(text, _vocabulary_size(recipe, found))
    shown = [f"{name} head {count:,}" for name, count in heads.items()]
    shown.append(f"text {own:,}" if own is not None else f"text: all of {text.model}")  # type: ignore[union-attr]
    if isinstance(text, schema.SentenceTransformers):
        place = (
            "a folder that is there"
            if Path(text.model).is_dir()
            else "no folder here: a hub name, fetched at first use"
        )
        yield f"text model {text.model}: {place}"
    yield f"trainable parameters: {', '.join(shown)}"


def _stage_lines(recipe: schema.Recipe, name: str, found: dict[str, Found]) -> Iterator[str]:
    stage = recipe.stages[name]
    items = [found[source].items(stage.unit) for source in stage.train.data]
    known = all(items)
    steps: int | None = stage.steps_per_epoch if isinstance(stage.steps_per_epoch, int) else None
    if steps is None and known:
        steps = sum(items) // stage.batch_size
    updates = "unknown number of" if steps is None else f"{stage.epochs * steps:,}"
    seen = "" if steps is None else f", {stage.epochs * steps * stage.batch_size:,} {stage.unit}s seen"
    sizes = " + ".join(
        f"{source} {count:,}" if count else f"{source} (missing)"
        for source, count in zip(stage.train.data, items, strict=True)
    )
    captions = "" if stage.unit == "pair" else f", {stage.captions_per_clip} captions a clip"
    what = f"{updates} updates of {stage.batch_size} {stage.unit}s{captions}{seen}"
    yield f"stage {name}: {what}; from {sizes}, mixed by {stage.train.mix}"
    if known and sum(items) < stage.batch_size:
        yield f"  {MISTAKE} batch_size {stage.batch_size} is more than the {sum(items)} items there are"
    watched = sum(found[source].items("clip") for source in stage.monitor.data)
    if all(found[source].clips for source in stage.monitor.data) and watched < 2:
        yield f"  {MISTAKE} it is watched on {watched} clips with captions, and needs two"
    if isinstance(stage.start_from, schema.FromModel) and not Path(stage.start_from.folder).is_dir():
        yield f"  starts from {stage.start_from.folder} MISSING; make it with python -m system export"
    memory = memory_estimate(recipe, stage, found) / GIB
    yield f"  memory: about {memory:.1f} GiB beside Python and torch (estimate)"


def _rank_mistakes(recipe: schema.Recipe, found: dict[str, Found]) -> Iterator[str]:
    for name, entry in recipe.rank.items():
        length, clips = get_edition(entry.edition).ranking_length, len(found[entry.data].clips)
        if entry.ranked_csv and 0 < clips < length:
            few = f"a ranked CSV lists {length} clips, {entry.data} has {clips}; say ranked_csv: false"
            yield f"rank {name}: {MISTAKE} {few}"


def memory_estimate(recipe: schema.Recipe, stage: schema.Stage, found: dict[str, Found]) -> float:
    """Bytes of weights, gradients, AdamW's two moments, and twice the activations that a training step keeps.

    Twice, for gradients in flight and what the allocator holds: the quick start's fine-tuning took 1.6 GiB beside
    Python and torch on a CPU, 1.2 times its estimate.

    An encoder layer keeps about 14 values of its width, 3 of its feed-forward and 3 per head and pair of places, for
    every place. A trainable pre-trained text encoder is taken as MiniLM-L6-v2 (22.7 M parameters, 6 x 384, ff 1,536, 12
    heads)."""
    audio, text = recipe.model.audio, recipe.model.text
    clips = [clip for source in stage.train.data for clip in found[source].clips]
    lengths = [clip.seconds for clip in clips if clip.seconds] or [ASSUMED_SECONDS]
    longest = sorted(lengths)[int(0.99 * (len(lengths) - 1))]  # a batch is padded to its longest clip
    captions = sum(len(clip.captions) for clip in clips)
    per_item = 1 if stage.unit == "pair" else stage.captions_per_clip
    count = captions / len(clips) if per_item == "all" and clips else (5 if per_item == "all" else per_item or 1)

    def layers(places: float, width: int, depth: int, ff: int, heads: int) -> float:
        return depth * places * (14 * width + 3 * ff + 3 * heads * places) * BYTES

    parameters = 0.0
    activations = 0.0
    for expert in audio.experts.values():
        frames = longest * expert.frames_per_second
        parameters += head_parameters(audio, expert.dim, text.dim)
        windows = max(1.0, frames / audio.positions)
        activations += stage.batch_size * frames * expert.dim * BYTES
        activations += (
            stage.batch_size * windows * layers(frames / windows, audio.width, audio.layers, audio.ff, audio.heads)
        )
    if isinstance(text, schema.Transformer):
        parameters += text_parameters(text, _vocabulary_size(recipe, found)) or 0
        activations += stage.batch_size * count * layers(WORDS, text.dim, text.layers, text.ff, text.heads)
    elif text.trainable:
        parameters += 22.7e6
        activations += stage.batch_size * count * layers(WORDS, 384, 6, 1536, 12)
    return parameters * 4 * BYTES + 2 * activations


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser, runs=False)


def run(arguments: argparse.Namespace) -> int:
    text = plan(load_from(arguments).recipe)
    print(text)
    return 1 if MISTAKE in text else 0
