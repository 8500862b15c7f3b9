"""What a recipe will take, reckoned without torch: parameters, memory and time of a step, disk of the banks."""

import json
import math
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from data_tools.manifest import Clip
from system import schema
from system.words import vocabulary_of

BYTES = 4  # of a float32
ASSUMED_SECONDS = 20.0  # length of a clip, captions of a clip, and size of the vocabulary, where nothing tells them
ASSUMED_CAPTIONS = 5.0
ASSUMED_VOCABULARY = 4_000
TOKENS = 16  # of a caption: 15.3 on average in Clotho, 12.0 in AudioCaps; sorted chunks add one in 25
MAX_HEADER = 100_000_000  # bytes, of a safetensors file
CORE_FLOPS = 62e9  # a second and CPU core in float32, measured on heads and text (2 cores: 125e9)
GPU_FLOPS = {"RTX 3090": 25e12, "H200": 250e12}  # a third and a quarter of their peak in 16 bits: assumed, not measured


@dataclass(frozen=True)
class Found:
    """What is known of a source: the clips of its manifest, or, when it is missing, what the recipe expects."""

    clips: list[Clip]
    expected: schema.Expected | None = None

    @property
    def captions(self) -> int:
        return sum(len(clip.captions) for clip in self.clips)

    @property
    def hours(self) -> float:
        if not self.clips:
            return self.expected.hours if self.expected else 0.0
        return sum(clip.seconds or 0.0 for clip in self.clips) / 3600

    @property
    def count(self) -> int:
        """Clips with captions, found or expected."""
        return self.items("clip") if self.clips or not self.expected else self.expected.clips

    @property
    def mean_seconds(self) -> float:
        lengths = [clip.seconds for clip in self.clips if clip.seconds]
        return sum(lengths) / len(lengths) if lengths else 3600 * self.hours / self.count or ASSUMED_SECONDS

    @property
    def longest_seconds(self) -> float:
        """The 99th percentile of what was found, or twice the mean of what is expected."""
        lengths = sorted(clip.seconds for clip in self.clips if clip.seconds)
        return lengths[int(0.99 * (len(lengths) - 1))] if lengths else 2 * self.mean_seconds

    @property
    def captions_per_clip(self) -> float:
        captions = self.expected.captions if self.expected and not self.clips else self.captions
        return captions / self.count

    def items(self, unit: str) -> int:
        """Items of a training batch that the source gives; 0 when it is missing."""
        return self.captions if unit == "pair" else sum(bool(clip.captions) for clip in self.clips)


@dataclass(frozen=True)
class TextSize:
    """A pre-trained text encoder: its parameters and layers."""

    parameters: int
    width: int
    layers: int
    ff: int
    heads: int


MINILM = TextSize(22_713_216, 384, 6, 1536, 12)  # all-MiniLM-L6-v2, and what an unknown one is taken for


def text_size(settings: schema.SentenceTransformers) -> TextSize:
    """From the folder's files; all-MiniLM-L6-v2's for a hub name and for files of another form."""
    folder = Path(settings.model)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        sizes = _safetensors_sizes(folder / "model.safetensors")
        return TextSize(
            parameters=sum(sizes),
            width=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            ff=int(config["intermediate_size"]),
            heads=int(config["num_attention_heads"]),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error):
        return MINILM


def _safetensors_sizes(path: Path) -> list[int]:
    """Values in every floating-point tensor, from the file's header."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(min(length, MAX_HEADER)))
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    return [math.prod(entry["shape"]) for entry in tensors if str(entry["dtype"]).startswith(("F", "BF"))]


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


@dataclass(frozen=True)
class Load:
    """What a step of a stage holds: clips of a batch, their mean and longest seconds, captions of the batch."""

    clips: int
    seconds: float
    longest: float
    captions: float


class Estimates:
    """What a recipe will take with the data that were found for it, and with what it expects of those that were not."""

    def __init__(self, recipe: schema.Recipe, found: dict[str, Found]) -> None:
        self.recipe, self.found = recipe, found

    @cached_property
    def text_parameters(self) -> int:
        """Trainable parameters of the text side."""
        text = self.recipe.model.text
        if isinstance(text, schema.Transformer):
            words = (self._vocabulary + 1) * text.dim
            encoder = encoder_parameters(text.dim, text.layers, text.ff, text.max_words)
            return words + encoder + (text.dim + 1) * text.dim
        projection = (text.dim + 1) * text.dim if text.projection == "linear" else 0
        return projection + (text_size(text).parameters if text.trainable else 0)

    @cached_property
    def _vocabulary(self) -> int:
        sources = {name for stage in self.recipe.stages.values() for name in stage.train.data}
        captions = (caption for name in sources for clip in self.found[name].clips for caption in clip.captions)
        return len(vocabulary_of(captions)) or ASSUMED_VOCABULARY

    @cached_property
    def head_parameters(self) -> dict[str, int]:
        """Of every expert's head."""
        audio, out = self.recipe.model.audio, self.recipe.model.text.dim
        return {name: head_parameters(audio, expert.dim, out) for name, expert in audio.experts.items()}

    def load(self, stage: schema.Stage) -> Load:
        """Of a batch whose sources are drawn as the stage mixes them."""
        sources = [self.found[name] for name in stage.train.data]
        known = [source for source in sources if source.count]
        weights = [1.0 if stage.train.mix == "equal" else float(source.count) for source in known]
        total = sum(weights)
        seconds = sum(w * source.mean_seconds for w, source in zip(weights, known, strict=True)) / total if known else 0
        drawn = 1 if stage.unit == "pair" else stage.captions_per_clip
        each = [source.captions_per_clip for source in known]
        used = each if drawn == "all" else [min(float(drawn or 1), n) for n in each]
        captions = sum(w * n for w, n in zip(weights, used, strict=True)) / total if known else ASSUMED_CAPTIONS
        longest = max((source.longest_seconds for source in known), default=ASSUMED_SECONDS)
        return Load(stage.batch_size, seconds or ASSUMED_SECONDS, longest, stage.batch_size * captions)

    def memory(self, stage: schema.Stage, precision: str) -> float:
        """Bytes of weights, gradients, AdamW's two moments, the batch's frames, and twice the activations that a
        training step keeps, of one part of the batch when gradients are cached.

        Twice, for gradients in flight and what the allocator holds. An encoder layer keeps about 14 values of its
        width, 3 of its feed-forward and 3 per head and pair of places, for every place; half the bytes in 16 bits.
        """
        load, audio, text = self.load(stage), self.recipe.model.audio, self.recipe.model.text
        share = min(1.0, (stage.gradient_cache or load.clips) / load.clips)
        size = BYTES if precision == "float32" else BYTES // 2

        def layers(places: float, width: int, depth: int, ff: int, heads: int) -> float:
            return depth * places * (14 * width + 3 * ff + 3 * heads * places) * size

        frames = activations = 0.0
        for expert in audio.experts.values():
            places = load.seconds * expert.frames_per_second
            windows = max(1.0, places / audio.positions)
            frames += load.clips * load.longest * expert.frames_per_second * expert.dim * 2  # one padded tensor
            encoder = layers(places / windows, audio.width, audio.layers, audio.ff, audio.heads)
            activations += load.clips * (places * expert.dim * BYTES + windows * encoder)
        if isinstance(text, schema.Transformer):
            activations += load.captions * layers(TOKENS, text.dim, text.layers, text.ff, text.heads)
        elif text.trainable:
            own = text_size(text)
            activations += load.captions * layers(TOKENS, own.width, own.layers, own.ff, own.heads)
        parameters = sum(self.head_parameters.values()) + self.text_parameters
        return parameters * 4 * BYTES + frames + 2 * share * activations

    def step_flops(self, stage: schema.Stage) -> float:
        """Floating-point operations of a training step: six a weight and place (forward two, backward four), and the
        attention's products; a forward more with cached gradients."""
        load, audio, text = self.load(stage), self.recipe.model.audio, self.recipe.model.text

        def layers(places: float, width: int, depth: int, ff: int) -> float:
            return 6 * depth * places * (4 * width * width + 2 * width * ff + 2 * places * width)

        total = 0.0
        for expert in audio.experts.values():
            places = load.seconds * expert.frames_per_second
            encoder = layers(places, audio.width, audio.layers, audio.ff)
            total += load.clips * (6 * places * expert.dim * audio.width + encoder)
        if isinstance(text, schema.Transformer):
            total += load.captions * layers(TOKENS, text.dim, text.layers, text.ff)
        elif text.trainable:
            own = text_size(text)
            total += load.captions * layers(TOKENS, own.width, own.layers, own.ff)
        return total * (4 / 3 if stage.gradient_cache else 1)

    def gradient_cache_that_fits(self, stage: schema.Stage, limit: float) -> int | None:
        """The largest power of two below the batch size whose step fits into `limit` bytes; None when none does."""
        size = 1 << (stage.batch_size - 1).bit_length() - 1
        while size and self.memory(stage.model_copy(update={"gradient_cache": size}), stage.precision) > limit:
            size //= 2
        return size or None

    def frame_bytes(self, stage: schema.Stage) -> float:
        """All float16 frames of the stage's clips, which stay on a GPU that has room for them."""
        seconds = 3600 * sum(self.found[name].hours for name in stage.train.data)
        return seconds * sum(2 * e.frames_per_second * e.dim for e in self.recipe.model.audio.experts.values())

    def audio_seconds(self) -> float:
        """Seconds of audio of all sources, each clip once."""
        clips = {clip.id: clip.seconds or 0.0 for own in self.found.values() for clip in own.clips}
        sources = self.recipe.data
        missing = {
            (sources[name].manifest, sources[name].split): own.hours
            for name, own in self.found.items()
            if not own.clips
        }
        return sum(clips.values()) + 3600 * sum(missing.values())
