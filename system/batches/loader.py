"""Tensors of a batch, read ahead in threads."""

import itertools
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from system.batches.augment import mix_waves
from system.batches.items import BATCHES_AHEAD, Item, Sampler, caption_key
from system.features.extract import Features, read_ahead
from system.losses.cider import Relevance
from system.models.batch import Batch, Series, own_rows
from system.moments.windows import label_frames
from system.processes import process_count

# B clips, T frames, D values in a frame, N captions


class Taught(NamedTuple):
    """A teacher's embeddings, each (D,) of length 1."""

    clips: Mapping[str, np.ndarray]  # by content key
    captions: Mapping[Any, np.ndarray]  # by caption_key

    def cosines(self, clips: Sequence[str], captions: Sequence[Any]) -> np.ndarray:
        """Return the cosines (B, N) of clips and captions."""
        return np.stack([self.clips[key] for key in clips]) @ np.stack([self.captions[key] for key in captions]).T


Teachers = Mapping[str, Taught]  # of a stage: trained models whose cosines a loss imitates


def collate(
    items: Sequence[Item],
    features: Features,
    relevance: Relevance | None = None,
    teachers: Teachers | None = None,
    longest: int = sys.maxsize,
    offsets: np.ndarray | None = None,
    chunks: list[list[int]] | None = None,
    pad_to_batch: bool = False,
) -> Batch:
    """Make the batch of items; frames keep their stored dtype.

    Args:
        items: Clips that all have frames.
        features: The clips' frames.
        relevance: Computes margin factors from captions; None if no loss needs them.
        teachers: Of the losses.
        longest: Most frames of a clip; of a longer one, a part is read.
        offsets: (B, 2) in [0, 1), where the parts of each item's clip and of the one mixed into it begin, 0 for the
            first frames; None for 0.
        chunks: Indexes of items in each chunk. Only this process's chunks get audio; None for all items.
        pad_to_batch: Pad to the longest clip of the batch, even if another process embeds it.
    """
    batch = make_batch_without_audio(items, features, relevance, teachers)
    rows = range(len(items)) if chunks is None else own_rows(chunks)
    begins = np.zeros((len(items), 2)) if offsets is None else offsets

    def frames_of(bank: Any, row: int) -> np.ndarray:
        parts, added = [], items[row].added
        for key, begin in zip(content_keys(features, items[row]), begins[row], strict=False):
            count = min(length := bank.rows_of(key), longest)
            parts.append(bank.part(key, int(begin * (length - count + 1)), count))
        return mix_waves(parts[0], parts[1], added.decibels, added.offset) if added else parts[0]

    audio = {}
    for name, bank in features.banks.items():
        each_row = bank.threads.map if bank.threads else map
        frames = list(each_row(partial(frames_of, bank), rows))
        lengths = torch.tensor([len(one) for one in frames], dtype=torch.int64)
        widths = frame_counts(items, features, name, longest) if pad_to_batch else lengths.tolist()
        values = np.zeros((len(frames), max(widths, default=0), bank.dim), bank.dtype)
        for row, one in zip(values, frames, strict=True):
            row[: len(one)] = one
        audio[name] = Series(torch.from_numpy(values), lengths)
    return replace(batch, audio=audio, chunks=chunks)


def frame_counts(items: Sequence[Item], features: Features, expert: str, longest: int = sys.maxsize) -> list[int]:
    """Count each item's frames, at most `longest`.

    A mixture has those of its longer clip.
    """
    bank = features.banks[expert]
    return [min(longest, max(map(bank.rows_of, content_keys(features, item)))) for item in items]


def make_batch_without_audio(
    items: Sequence[Item], features: Features, relevance: Relevance | None, teachers: Teachers | None = None
) -> Batch:
    """Make a batch of all but audio."""
    captions = [caption for item in items for caption in item.captions]
    counts = [len(item.captions) for item in items]
    row_of = np.repeat(np.arange(len(items)), counts)
    factors = None
    if relevance is not None:
        factors = torch.from_numpy(relevance.margin_factor(relevance.among(captions).of_items(counts)))
    keys = ["+".join(sorted({*content_keys(features, item)})) for item in items]  # of a mixture in either order
    of_captions = [caption_key(item.clip, number) for item in items for number in item.numbers] if teachers else []
    cosines = {name: torch.from_numpy(one.cosines(keys, of_captions)) for name, one in (teachers or {}).items()}
    labels = _frame_labels(items, features) if any(item.windows for item in items) else None
    return Batch(keys, {}, captions, torch.from_numpy(row_of), factors, cosines, labels)


def _frame_labels(items: Sequence[Item], features: Features) -> Tensor:
    """Return whether frames are in an item's windows, (B, T)."""
    expert = next(iter(features.banks))
    lengths = frame_counts(items, features, expert)
    labels = np.zeros((len(items), max(lengths)), bool)
    for row, item, length in zip(labels, items, lengths, strict=True):
        row[:length] = label_frames(item.windows, length, features.grids[expert])
    return torch.from_numpy(labels)


def content_keys(features: Features, item: Item) -> list[str]:
    """Return the keys of the clips of an item.

    They are its own, and the one that is mixed into it.
    """
    return [features.keys[clip.id] for clip in (item.clip, *([item.added.clip] if item.added else []))]


def divide_into_chunks(lengths: Sequence[int], size: int | None, count: int) -> list[list[int]]:
    """Divide clips or captions into chunks that are embedded together.

    Args:
        lengths: Of clips or captions; those of a chunk are similar if `size` is given.
        size: Of a chunk; None for one chunk per process.
        count: Number of processes.

    Returns:
        Indexes by chunk.
    """
    if size is not None:
        order = np.argsort(np.asarray(lengths), kind="stable").tolist()
        return [order[start : start + size] for start in range(0, len(order), size)]
    return [list(range(first, len(lengths), count)) for first in range(min(count, len(lengths)))]


def read_batches(
    sampler: Sampler,
    features: Features,
    relevance: Relevance | None,
    device: torch.device,
    teachers: Teachers | None = None,
    longest: int | None = None,
    chunk: int | None = None,
    pad_to_batch: bool = False,
    step: int = 0,
) -> Generator[Batch, None, None]:
    """Yield the batches of a stage, on the device.

    Threads make the next ones during a step. A batch depends only on its step. With several processes, each gets the
    audio of its part of a batch.

    Args:
        sampler: Draws the items.
        features, relevance, teachers, pad_to_batch: See `collate`.
        device: Of the batches.
        longest: Most frames per clip, a random part; None for all.
        chunk: Clips that are embedded at a time.
        step: Of the first batch.
    """
    most = longest or sys.maxsize

    def make(number: int) -> Batch:
        items, chunks = sampler.batch(number), None
        if process_count() > 1:
            lengths = frame_counts(items, features, next(iter(features.banks)), most)
            chunks = divide_into_chunks(lengths, chunk, process_count())
        offsets = sampler.crop_offsets(number)
        made = collate(items, features, relevance, teachers, most, offsets, chunks, pad_to_batch)
        return made.pin_audio() if device.type == "cuda" else made

    ahead = BATCHES_AHEAD if relevance is None else 1  # CIDEr-D uses all cores itself
    yield from (batch.to(device) for batch in read_ahead(make, itertools.count(step), ahead))
