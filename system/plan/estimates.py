"""Estimate parameters, memory, time and disk.

The estimates are for the parameters of a recipe's model, the memory and time of a training step, and the disk space of
banks and checkpoints. Counting parameters and operations imports torch.
"""

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from data_tools.errors import sentences
from data_tools.manifest import Clip
from data_tools.words import vocabulary_of
from system.experts.base import ExpertSettings
from system.experts.waveform import Waveform
from system.features.stored import bank_fits, seconds_missing
from system.models.costs import Cost, UnknownSizeError, count_parameters, measure_cost_once, skip_weight_init
from system.models.score import count_layer_parameters
from system.plan.content import ASSUMED_SECONDS, Content
from system.plan.machine import GIB
from system.recipe import schema

if TYPE_CHECKING:
    import torch
    from torch import nn

    from system.models.audio.encoder import AudioEncoder

BYTES = 4  # of a float32
ASSUMED_CAPTIONS = 5.0  # of a clip, if they are not known
ASSUMED_VOCABULARY = 4_000  # words, if they are not known
# Per second and CPU core in float32, measured on heads and text (2 cores: 125e9), and on PANNs (58e9 to 64e9).
CORE_FLOPS = 62e9


class Gpu(NamedTuple):
    """Memory and assumed speed of a GPU.

    memory: Bytes that its driver reports. flops: Operations per second in 16 bits. tf32: Operations per second for
    float32 products with 10 bits after the point; half of `flops`.

    The speed of the A40 is fitted to the published runs of the 2025 baseline, which include validation and reading.
    A plan states 2.3 hours for Clotho (published: 2.27), 5.0 with AudioCaps (published: 7.27), and 60 with WavCaps
    (published: 34.7). The last is too high since most clips of WavCaps are shorter than their mean. The speeds of the
    other GPUs are a third or a quarter of their peak speeds. They are assumed, not measured.
    """

    flops: float
    memory: float

    @property
    def tf32(self) -> float:
        """Operations per second for products of float32 matrices, computed in TF32."""
        return self.flops / 2

    def speed(self, precision: str) -> float:
        """Return the GPU's operations per second in a precision, such as bf16."""
        return self.tf32 if precision == "float32" else self.flops


GPUS = {
    "RTX 3090": Gpu(25e12, 24 * GIB),
    "A40": Gpu(20e12, 45 * GIB),
    "A100": Gpu(80e12, 80 * GIB),
    "H100": Gpu(250e12, 79.6 * GIB),
    "H200": Gpu(250e12, 140.4 * GIB),
}


def frame_bytes(expert: ExpertSettings) -> int:
    """Return the bytes of one stored frame of an expert."""
    return expert.dim * np.dtype(expert.dtype).itemsize


class Load(NamedTuple):
    """The size of a training step's batch: number of clips, their mean and longest seconds, number of captions."""

    clips: int
    seconds: float
    longest: float
    captions: float


class Estimates:
    """Estimated costs of a recipe, with the existing data, and with the expected sizes of missing data."""

    def __init__(self, recipe: schema.Recipe, found: dict[str, Content]) -> None:
        """Store the recipe and its data. found: Dict from data source to its contents, as find_data returns it."""
        self.recipe, self.found = recipe, found

    @cached_property
    def _audio_encoder(self) -> "AudioEncoder":
        """Untrained audio encoder, for counting its operations and memory."""
        with skip_weight_init():
            return self.recipe.model.audio.build_without_files(self.recipe.model.text.dim).train()

    @cached_property
    def _text_encoder(self) -> tuple["nn.Module", Callable[[], "torch.Tensor"]]:
        """Pair of the untrained text encoder, for counting its cost, and a function that embeds one caption."""
        text = self.recipe.model.text
        assumed = [f"w{n}" for n in range(ASSUMED_VOCABULARY)]
        return text.network_for_costs((self._vocabulary or assumed) if text.reads_vocabulary else [])

    @cached_property
    def why_unknown(self) -> str | None:
        """Reason why the costs of the encoders cannot be computed; None if they can."""
        try:
            _ = [self.checkpoint_bytes, *(self.memory(stage, stage.precision) for stage in self.recipe.stages.values())]
        except (UnknownSizeError, ModuleNotFoundError) as error:
            return "; ".join(sentences(error))
        return None

    def text_cost(self, half: bool = False) -> Cost:
        """Return operations and memory of the text encoder in a training step, per caption. half: 16-bit training.

        With `half`, only the memory of the result is valid, since operations in 16 bits are not counted.
        """
        return measure_cost_once(self.recipe.model.text.model_dump_json(), *self._text_encoder, half)

    def audio_cost(self, load: Load, half: bool = False) -> Cost:
        """Return operations and memory of the audio encoder in a training step, per clip. half: 16-bit training.

        With `half`, only the memory of the result is valid, since operations in 16 bits are not counted.
        """
        return self.recipe.model.audio.cost(self._audio_encoder, load.seconds, load.longest, half)

    @cached_property
    def frozen_parameters(self) -> int:
        """Number of parameters that are not trained."""
        return count_parameters(self._audio_encoder, trainable=False) + count_parameters(
            self._text_encoder[0], trainable=False
        )

    @cached_property
    def parameters_by_part(self) -> dict[str, int]:
        """Dict from part of the model to its number of trainable parameters.

        The parts are those of the audio encoder, the whole text encoder, and the layers of the score.
        """
        parts = {name: count_parameters(part, trainable=True) for name, part in self._audio_encoder.parts().items()}
        with skip_weight_init():
            score = self.recipe.model.score.build(self.recipe.model.text.dim)
        return parts | {"text": count_parameters(self._text_encoder[0], trainable=True)} | count_layer_parameters(score)

    @cached_property
    def _vocabulary(self) -> list[str]:
        """Words of the training captions and moments, as far as their files exist."""
        found = [self.found[name] for name in self.recipe.trained_on]
        captions = (caption for each in found for clip in each.clips for caption in clip.captions)
        queries = (moment.text for each in found for moment in each.moments or ())
        return vocabulary_of(chain(captions, queries))

    @property
    def assumes_vocabulary(self) -> bool:
        """Whether estimates assume a vocabulary, because captions are missing."""
        return self.recipe.model.text.reads_vocabulary and not self._vocabulary

    def load(self, stage: schema.Stage) -> Load:
        """Return the size of a stage's training step: numbers of clips and captions, and lengths of clips.

        The mean length and the number of captions are averages over the data sources, mixed as in the stage.
        """
        sources = [self.found[name] for name in stage.train.data]
        known = [source for source in sources if source.count]
        if not known:
            captions = stage.batch_size * ASSUMED_CAPTIONS
            return Load(stage.batch_size, ASSUMED_SECONDS, ASSUMED_SECONDS, captions)
        weights = [1.0 if stage.train.mix == "equal" else float(source.count) for source in known]
        seconds = np.average([source.mean_seconds for source in known], weights=weights)
        drawn = 1 if stage.unit == "pair" else stage.captions_per_clip
        each = [source.captions_per_clip for source in known]
        used = each if drawn == "all" else [min(float(drawn or 1), n) for n in each]
        captions = stage.batch_size * np.average(used, weights=weights)
        longest = max(source.longest_seconds for source in known)
        return Load(stage.batch_size, float(seconds), longest, float(captions))

    def memory(self, stage: schema.Stage, precision: str) -> float:
        """Estimate the bytes of memory that a stage's training step needs in total."""
        return sum(self.memory_parts(stage, precision).values())

    def memory_parts(self, stage: schema.Stage, precision: str, share: Load | None = None) -> dict[str, float]:
        """Return a dict from use to estimated bytes of a training step's memory.

        Keys of the dict:

        weights: Weights in float32.
        AdamW: Two moments of each trained weight.
        gradients: Gradients of the trained weights. The memory of activations that is freed
        while gradients are computed is not subtracted, because it is seldom in blocks of the right size.
        16-bit copies: Copies of all weights in 16 bits.
        activations: Largest size of the layers' values and gradients; with grad_cache_chunk, only for one chunk.
        batch: Frames of the batch's clips.

        share: The part of the batch in one process; None: the whole batch.
        """
        load, half = share or self.load(stage), precision != "float32"
        audio, text = self.audio_cost(load, half), self.text_cost(half)
        fraction = min(1.0, (stage.grad_cache_chunk or load.clips) / load.clips)
        activations = fraction * (load.clips * audio.peak + load.captions * text.peak)
        trained = self.count_trainable(stage)
        weights = sum(self.parameters_by_part.values()) + self.frozen_parameters
        copies = 0 if not half else weights * BYTES // 2
        gradients = float(BYTES * trained)
        return {
            "weights": BYTES * float(weights),
            "AdamW": 2 * gradients,
            "gradients": gradients,
            "16-bit copies": float(copies),
            "activations": activations,
            "batch": load.clips * self._padded_bytes(load.longest),
        }

    def _padded_bytes(self, seconds: float) -> float:
        """Return the bytes of a clip's padded frames in a training batch, summed over all experts.

        The clip is padded to `seconds`, but at most to the `training_frames` of the recipe.
        """
        audio = self.recipe.model.audio
        limit = math.inf if audio.training_frames is None else audio.training_frames
        return sum(frame_bytes(e) * min(seconds * e.frames_per_second, limit) for e in audio.experts.values())

    @property
    def _bytes_per_second(self) -> float:
        """Bytes of all experts' frames per second of audio, in the dtype of their banks."""
        return sum(frame_bytes(e) * e.frames_per_second for e in self.recipe.model.audio.experts.values())

    @property
    def bank_bytes(self) -> dict[str, float]:
        """Dict from expert to the bytes of all its frames in the banks; 0 if the length of the audio is not known."""
        seconds = self.audio_seconds()
        experts = self.recipe.model.audio.experts.items()
        return {name: seconds * expert.frames_per_second * frame_bytes(expert) for name, expert in experts}

    @cached_property
    def decodes_files(self) -> bool:
        """Whether waveforms are decoded from the audio files for each batch, instead of stored in banks."""
        experts = self.recipe.model.audio.experts
        has_waveforms = any(isinstance(expert, Waveform) for expert in experts.values())
        if not has_waveforms or self.recipe.waveforms != "auto":
            return has_waveforms and self.recipe.waveforms == "files"
        size = sum(frame_bytes(e) * e.frames_per_second * self._seconds_not_stored[name] for name, e in experts.items())
        return not bank_fits(Path(self.recipe.banks), size)

    @cached_property
    def _seconds_not_stored(self) -> dict[str, float]:
        """Dict from expert to the seconds of audio without stored frames, including audio of missing manifests."""
        missing = seconds_missing(self.clips(), self.recipe.model.audio.experts, Path(self.recipe.banks))
        return {name: self.missing_manifest_seconds() + seconds for name, seconds in missing.items()}

    @property
    def missing_seconds(self) -> dict[str, float]:
        """Dict from expert to the seconds of audio whose frames will be stored; 0 for waveforms read from files."""
        return dict.fromkeys(self.recipe.model.audio.experts, 0.0) if self.decodes_files else self._seconds_not_stored

    @property
    def checkpoint_bytes(self) -> float:
        """Bytes of the checkpoints of all stages.

        Each metric is assumed to be best at another epoch. The last checkpoint of a stage includes AdamW's two moments.
        With `save_minutes`, twice as many best epochs are counted. The reason: Files that belong to the last saved
        state of training are kept until the next state is saved, even if newer epochs are better.
        """
        weights = sum(self.parameters_by_part.values()) + count_parameters(self._audio_encoder, trainable=False)
        stages = self.recipe.stages.values()
        best = [(1 if s.save_minutes is None else 2) * s.monitor.keep * len(s.monitor.metrics) for s in stages]
        kept = sum(min(count, stage.epochs) for count, stage in zip(best, stages, strict=True))
        return float(BYTES * kept * weights) + sum(map(self.state_bytes, stages))

    def state_bytes(self, stage: schema.Stage) -> float:
        """Return the bytes of a stage's last checkpoint: the weights for ranking and the state of AdamW."""
        weights = sum(self.parameters_by_part.values()) + count_parameters(self._audio_encoder, trainable=False)
        return float(BYTES * (weights + 2 * self.count_trainable(stage)))

    def count_trainable(self, stage: schema.Stage) -> int:
        """Return the number of parameters that a stage trains."""
        return sum(self.parameters_by_part.values())

    def step_flops(self, stage: schema.Stage) -> float:
        """Estimate the floating-point operations of a training step of a stage.

        With `grad_cache_chunk`, one more forward pass is counted.
        """
        return self.flops_of(self.load(stage), stage.grad_cache_chunk)

    def flops_of(self, load: Load, chunk: int | None) -> float:
        """Estimate the operations of a training step with a batch of the size `load`. chunk: Clips per chunk.

        With chunks, a third more operations are needed.
        """
        total = load.clips * self.audio_cost(load).flops + load.captions * self.text_cost().flops
        return total * (4 / 3 if chunk else 1)

    def grad_cache_that_fits(self, stage: schema.Stage, limit: float) -> int | None:
        """Return the largest `grad_cache_chunk` whose step fits into `limit` bytes; None if no size fits.

        The result is a power of two below the batch size.
        """
        size = 1 << (stage.batch_size - 1).bit_length() - 1
        while size and self.memory(stage.model_copy(update={"grad_cache_chunk": size}), stage.precision) > limit:
            size //= 2
        return size or None

    def bytes_of_frames(self, stage: schema.Stage) -> float:
        """Return the bytes of all frames of a stage's clips.

        The frames stay on a GPU if they fit.
        """
        return 3600 * sum(self.found[name].hours for name in stage.train.data) * self._bytes_per_second

    def audio_seconds(self) -> float:
        """Return the seconds of audio of all data sources, counting each clip once."""
        return self._found_seconds + self.missing_manifest_seconds()

    def clips(self) -> Iterator[Clip]:
        """Yield the clips of all data sources, each once.

        Ids are compared by their hashes. Different ids almost never have the same hash.
        """
        seen: set[int] = set()
        for clip in chain.from_iterable(source.clips for source in self.found.values()):
            if (number := hash(clip.id)) not in seen:
                seen.add(number)
                yield clip

    @cached_property
    def _found_seconds(self) -> float:
        """Seconds of audio in the manifests that exist."""
        return math.fsum(clip.seconds or 0.0 for clip in self.clips())

    def missing_manifest_seconds(self) -> float:
        """Return the expected seconds of audio of data sources whose manifests are missing."""
        missing = {}
        for name, source in self.recipe.data.items():
            if not self.found[name].clips:
                missing[source.manifest, source.split] = self.found[name].hours
        return 3600 * sum(missing.values())
