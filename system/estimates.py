"""What a recipe will take, reckoned without torch: parameters, memory and time of a step, disk of the banks."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from data_tools.manifest import Clip
from system import schema
from system.words import vocabulary_of

BYTES = 4  # of a float32
ASSUMED_SECONDS = 20.0  # length of a clip, captions of a clip, and size of the vocabulary, where nothing tells them
ASSUMED_CAPTIONS = 5.0
ASSUMED_VOCABULARY = 4_000
TOKENS = 16  # of a caption: 15.3 on average in Clotho, 12.0 in AudioCaps; sorted chunks add one in 25
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

    def items(self, unit: str) -> int:
        """Items of a training batch that the source gives; 0 when it is missing."""
        return self.captions if unit == "pair" else sum(bool(clip.captions) for clip in self.clips)


@dataclass(frozen=True)
class TextSize:
    """A pre-trained text encoder: parameters in all and in the word vectors, and its layers."""

    parameters: int
    embeddings: int
    width: int
    layers: int
    ff: int
    heads: int


MINILM = TextSize(22_713_216, 11_920_896, 384, 6, 1536, 12)  # all-MiniLM-L6-v2, and what an unknown one is taken for


def text_size(settings: schema.SentenceTransformers) -> TextSize:
    """From the folder's files; all-MiniLM-L6-v2's for a hub name and for files of another form."""
    folder = Path(settings.model)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        shapes = _safetensors_shapes(folder / "model.safetensors")
        return TextSize(
            parameters=sum(shapes.values()),
            embeddings=sum(count for name, count in shapes.items() if "embeddings" in name),
            width=config["hidden_size"],
            layers=config["num_hidden_layers"],
            ff=config["intermediate_size"],
            heads=config["num_attention_heads"],
        )
    except (OSError, ValueError, KeyError, struct.error):
        return MINILM


def _safetensors_shapes(path: Path) -> dict[str, int]:
    """Values in every floating-point tensor, from the file's header."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    counts = {}
    for name, entry in header.items():
        if name != "__metadata__" and str(entry["dtype"]).startswith(("F", "BF")):
            counts[name] = 1
            for n in entry["shape"]:
                counts[name] *= n
    return counts


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


def text_parameters(text: schema.Transformer | schema.SentenceTransformers, vocabulary: int) -> int:
    """Trainable parameters of the text side."""
    if isinstance(text, schema.Transformer):
        words = (vocabulary + 1) * text.dim
        return words + encoder_parameters(text.dim, text.layers, text.ff, text.max_words) + (text.dim + 1) * text.dim
    projection = (text.dim + 1) * text.dim if text.projection == "linear" else 0
    return projection + (text_size(text).parameters if text.trainable else 0)


def vocabulary_size(recipe: schema.Recipe, found: dict[str, Found]) -> int:
    sources = {name for stage in recipe.stages.values() for name in stage.train.data}
    captions = (caption for name in sources for clip in found[name].clips for caption in clip.captions)
    return len(vocabulary_of(captions)) or ASSUMED_VOCABULARY


@dataclass(frozen=True)
class Load:
    """What a step of a stage holds: clips of a batch, their mean and longest seconds, captions of the batch."""

    clips: int
    seconds: float
    longest: float
    captions: float


def load_of(stage: schema.Stage, found: dict[str, Found]) -> Load:
    clips = [clip for source in stage.train.data for clip in found[source].clips]
    expected = [e for source in stage.train.data if (e := found[source].expected) and not found[source].clips]
    lengths = sorted(clip.seconds for clip in clips if clip.seconds)
    expected_mean = max((e.hours * 3600 / e.clips for e in expected), default=ASSUMED_SECONDS)
    mean = sum(lengths) / len(lengths) if lengths else expected_mean
    longest = lengths[int(0.99 * (len(lengths) - 1))] if lengths else 2 * expected_mean
    per_clip: float = ASSUMED_CAPTIONS
    if clips or expected:
        count = sum(len(clip.captions) for clip in clips) + sum(e.captions for e in expected)
        per_clip = count / (len(clips) + sum(e.clips for e in expected))
    drawn = 1 if stage.unit == "pair" else stage.captions_per_clip
    per_item = per_clip if drawn == "all" else min(float(drawn or 1), per_clip)
    return Load(stage.batch_size, mean, longest, stage.batch_size * per_item)


def memory(recipe: schema.Recipe, stage: schema.Stage, found: dict[str, Found], precision: str) -> float:
    """Bytes of weights, gradients, AdamW's two moments, the batch's frames, and twice the activations that a training
    step keeps, of one part of the batch when gradients are cached.

    Twice, for gradients in flight and what the allocator holds: the quick start's fine-tuning took 1.6 GiB beside
    Python and torch on a CPU, 1.2 times its estimate. An encoder layer keeps about 14 values of its width, 3 of its
    feed-forward and 3 per head and pair of places, for every place; half the bytes in 16 bits.
    """
    load = load_of(stage, found)
    audio, text = recipe.model.audio, recipe.model.text
    share = min(1.0, (stage.gradient_cache or load.clips) / load.clips)
    size = BYTES if precision == "float32" else BYTES // 2

    def layers(places: float, width: int, depth: int, ff: int, heads: int) -> float:
        return depth * places * (14 * width + 3 * ff + 3 * heads * places) * size

    frames = 0.0
    activations = 0.0
    for expert in audio.experts.values():
        places = load.seconds * expert.frames_per_second
        windows = max(1.0, places / audio.positions)
        frames += load.clips * load.longest * expert.frames_per_second * expert.dim * 2  # one padded tensor
        activations += load.clips * places * expert.dim * BYTES
        activations += load.clips * windows * layers(places / windows, audio.width, audio.layers, audio.ff, audio.heads)
    if isinstance(text, schema.Transformer):
        activations += load.captions * layers(TOKENS, text.dim, text.layers, text.ff, text.heads)
    elif text.trainable:
        own = text_size(text)
        activations += load.captions * layers(TOKENS, own.width, own.layers, own.ff, own.heads)
    return trainable(recipe, found) * 4 * BYTES + frames + 2 * share * activations


def trainable(recipe: schema.Recipe, found: dict[str, Found]) -> int:
    """Trainable parameters of the whole model."""
    audio, text = recipe.model.audio, recipe.model.text
    heads = sum(head_parameters(audio, expert.dim, text.dim) for expert in audio.experts.values())
    return heads + text_parameters(text, vocabulary_size(recipe, found))


def step_flops(recipe: schema.Recipe, stage: schema.Stage, found: dict[str, Found]) -> float:
    """Floating-point operations of a training step: six a parameter and place (forward twice two, backward twice
    that), and the attention's products; a forward more with cached gradients."""
    load = load_of(stage, found)
    audio, text = recipe.model.audio, recipe.model.text

    def layers(places: float, width: int, depth: int, ff: int) -> float:
        return 6 * depth * places * (4 * width * width + 2 * width * ff + 2 * places * width)

    total = 0.0
    for expert in audio.experts.values():
        places = load.seconds * expert.frames_per_second
        total += load.clips * (
            6 * places * expert.dim * audio.width + layers(places, audio.width, audio.layers, audio.ff)
        )
    if isinstance(text, schema.Transformer):
        total += load.captions * layers(TOKENS, text.dim, text.layers, text.ff)
    elif text.trainable:
        own = text_size(text)
        total += load.captions * layers(TOKENS, own.width, own.layers, own.ff)
    return total * (4 / 3 if stage.gradient_cache else 1)


def gradient_cache_that_fits(
    recipe: schema.Recipe, stage: schema.Stage, found: dict[str, Found], limit: float
) -> int | None:
    """The largest power of two below the batch size whose step fits into `limit` bytes; None when not even 1 does."""
    size = 1 << (stage.batch_size - 1).bit_length() - 1
    while size and memory(recipe, stage.model_copy(update={"gradient_cache": size}), found, stage.precision) > limit:
        size //= 2
    return size or None


def audio_seconds(recipe: schema.Recipe, found: dict[str, Found]) -> float:
    """Seconds of audio of all sources, each clip once."""
    clips = {clip.id: clip.seconds or 0.0 for own in found.values() for clip in own.clips}
    missing = {
        (recipe.data[name].manifest, recipe.data[name].split): own.hours for name, own in found.items() if not own.clips
    }
    return sum(clips.values()) + 3600 * sum(missing.values())
