"""Make the tensors of a batch.

The frames of clips are read from banks (files of stored frames) a step ahead, or they stay on the GPU.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from data_tools.manifest import Clip
from system.batches.crops import Crops
from system.batches.mixing import mix_waves
from system.batches.sampler import Item, Sampler, batches_ahead
from system.batches.shares import divide_into_chunks
from system.batches.teachers import Teachers
from system.compute.device import on_device
from system.compute.processes import process_count, process_index
from system.features.build import Features
from system.losses.relevance.relax import Relevance
from system.models.batch import Batch, Series, Share
from system.moments.windows import label_frames

log = logging.getLogger(__name__)

# B clips, T frames, D values in a frame, N captions

RESIDENT_SHARE = 0.5  # of the GPU's free memory that frames may take; the rest is for the step


def collate(
    items: Sequence[Item],
    features: Features,
    relevance: Relevance | None = None,
    teachers: Teachers | None = None,
    crops: Crops | None = None,
    share: Share | None = None,
    pad_to_batch: bool = False,
) -> Batch:
    """Return the batch of training items, with audio only of the items that this process embeds.

    All clips must have frames. The frames have their stored dtype: float16, float32 or int16.
    relevance: Computes the margin factors: the ranking loss multiplies its margin by such a factor if a caption also
    fits another clip. None if no loss needs them.
    teachers: The stage's teachers, trained models whose scores a loss imitates; None without such a loss.
    crops: Random parts of long clips; None: all frames.
    share: The part of the batch that this process embeds; None: the whole batch.
    pad_to_batch: Pad to the longest clip of the batch, even if that clip is not in `share`.
    """
    batch = make_batch_without_audio(items, features, relevance, teachers)
    rows = range(len(items)) if share is None else share.rows
    longest = crops.longest if crops else None
    audio = {}
    for name in features.banks:
        width = max(frame_counts(items, features, name, longest)) if pad_to_batch else 0
        audio[name] = _pad_frames(features, name, items, crops, rows, width)
    return replace(batch, audio=audio, share=share)


def frame_counts(items: Sequence[Item], features: Features, expert: str, longest: int | None) -> list[int]:
    """Return the number of frames of each item's clip, at most `longest`; None for no limit.

    A mixture counts as its longer clip.
    """
    bank, keys = features.banks[expert], features.keys
    lengths = [
        max(bank.rows_of(keys[clip.id]) for clip in (item.clip, *([item.added.clip] if item.added else [])))
        for item in items
    ]
    return lengths if longest is None else [min(length, longest) for length in lengths]


def make_batch_without_audio(
    items: Sequence[Item], features: Features, relevance: Relevance | None, teachers: Teachers | None = None
) -> Batch:
    """Return the batch of `items` without audio: captions, margin factors, teachers' cosines, and labels of frames."""
    captions = [caption for item in items for caption in item.captions]
    row_of = np.array([row for row, item in enumerate(items) for _ in item.captions])
    factors = None
    if relevance is not None:
        factors = torch.from_numpy(relevance.margin_factor(relevance.cider_of_items(captions, row_of)))
    keys = [_content_key(features, item) for item in items]
    cosines = teachers.cosines(items, keys) if teachers else {}
    labels = _frame_labels(items, features) if any(item.windows for item in items) else None
    return Batch(keys, {}, captions, torch.from_numpy(row_of), factors, cosines, labels)


def _frame_labels(items: Sequence[Item], features: Features) -> torch.Tensor:
    """Return (B, T) bool labels of the frames of each item's clip: true inside the item's windows."""
    expert = next(iter(features.banks))
    lengths = frame_counts(items, features, expert, None)
    labels = np.zeros((len(items), max(lengths)), bool)
    for row, item, length in zip(labels, items, lengths, strict=True):
        row[:length] = label_frames(item.windows, length, features.grids[expert])
    return torch.from_numpy(labels)


def _content_key(features: Features, item: Item) -> str:
    """Return the content key of a training item's audio: of its clip, or of its mixture of two clips.

    The content key of a clip is a checksum of its audio file.
    The key of a mixture contains the sorted keys of both clips, and thus differs from the key of each clip. Losses
    count all mixtures with the same key as one clip. A mixture of two clips with the same content has the key of that
    content.
    """
    key = features.keys[item.clip.id]
    return "+".join(sorted({key, features.keys[item.added.clip.id]})) if item.added else key


def _item_frames(features: Features, expert: str, items: Sequence[Item], index: int, crops: Crops | None) -> np.ndarray:
    """Return an expert's frames (T, D) of a training item: of its clip or its mixture, or of a random crop of these."""
    bank, added = features.banks[expert], items[index].added

    def read_crop(clip: Clip, is_added: bool) -> np.ndarray:
        """Read a clip's frames, or only a random crop of them. is_added: Whether it is mixed into another clip."""
        key = features.keys[clip.id]
        first, count = crops.range(bank.rows_of(key), index, is_added) if crops else (0, bank.rows_of(key))
        return bank.part(key, first, count)

    frames = read_crop(items[index].clip, False)
    if added is None:
        return frames
    return mix_waves(frames, read_crop(added.clip, True), added.decibels, added.offset)


def _pad_frames(
    features: Features, expert: str, items: Sequence[Item], crops: Crops | None, rows: Sequence[int], width: int
) -> Series:
    """Return an expert's frames of the items at the indexes `rows`, padded with zeros to at least `width` frames.

    crops: Random parts of long clips; None: all frames.
    """
    bank = features.banks[expert]
    each_row = bank.threads.map if bank.threads else map
    frames = list(each_row(lambda index: _item_frames(features, expert, items, index, crops), rows))
    lengths = np.array([len(f) for f in frames], np.int64)
    values = np.zeros((len(frames), max(width, lengths.max(initial=0)), bank.dim), bank.dtype)
    for row, f in zip(values, frames, strict=True):
        row[: len(f)] = f
    return Series(torch.from_numpy(values), torch.from_numpy(lengths))


class Resident:
    """The frames of clips on the device, in one tensor per expert. Batches are gathered from them on the device."""

    def __init__(self, keys: Iterable[str], features: Features, device: torch.device) -> None:
        """Copy the frames of all clips with the given content keys (checksums of their audio) to the device."""
        self.index_of = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        self.tables = {name: self._copy_frames(features, name, device) for name in features.banks}

    @staticmethod
    def bytes_needed(keys: Iterable[str], features: Features) -> int:
        """Return the bytes of memory that the frames of clips need. keys: Content keys (checksums) of the clips."""
        unique = set(keys)
        banks = features.banks.values()
        return sum(bank.dtype.itemsize * bank.dim * bank.rows_of(key) for bank in banks for key in unique)

    def _copy_frames(
        self, features: Features, expert: str, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Copy an expert's frames to the device; return all frames, and each clip's first frame and number of frames.

        The frames (F, D) of all clips are in one tensor, one clip after the other, and have the stored dtype.
        """
        bank = features.banks[expert]
        lengths = torch.tensor([bank.rows_of(key) for key in self.index_of])
        first = lengths.cumsum(0) - lengths
        keys = list(self.index_of)
        kept = torch.from_numpy(np.empty(0, bank.dtype)).dtype
        frames = torch.empty(int(lengths.sum()), bank.dim, dtype=kept, device=device)
        for start in range(0, len(keys), 256):  # copy many clips to the device at a time
            part = np.concatenate([bank.read(key) for key in keys[start : start + 256]])
            at = int(first[start])
            frames[at : at + len(part)] = torch.from_numpy(part).to(device)
        return frames, first, lengths

    def gather_audio(
        self, keys: Sequence[str], crops: Crops | None = None, among: Sequence[str] = ()
    ) -> dict[str, Series]:
        """Return a dict from expert to the frames of the clips `keys`, padded to the same length.

        The frames are gathered on the device, and equal those that `collate` returns. keys: Content keys (checksums) of
        clips. crops: Random parts of long clips; None: all frames. among: Content keys of the whole batch's clips, if
        the frames must be padded to the longest of these clips.
        """
        return {name: self._gather_series(*table, keys, crops, among) for name, table in self.tables.items()}

    def _gather_series(
        self,
        frames: torch.Tensor,
        first: torch.Tensor,
        lengths: torch.Tensor,
        keys: Sequence[str],
        crops: Crops | None,
        among: Sequence[str],
    ) -> Series:
        """Return the frames of the clips `keys` for one expert, padded to the same length.

        frames: The expert's frames of all clips. first, lengths: Index of each clip's first frame in `frames`, and each
        clip's number of frames. keys, crops, among: See `gather_audio`.
        """
        clips = torch.tensor([self.index_of[key] for key in keys])
        begin, clip_lengths = first[clips], lengths[clips]
        if crops is not None:
            spare = (clip_lengths - crops.longest).clamp(min=0)
            offsets = torch.from_numpy(crops.offsets[:, 0].copy())
            skipped = (offsets * (spare + 1)).long().minimum(spare)
            begin, clip_lengths = begin + skipped, clip_lengths.clamp(max=crops.longest)
        all_lengths = lengths[torch.tensor([self.index_of[key] for key in (*keys, *among)])]
        width = int(all_lengths.max()) if len(all_lengths) else 0
        width = width if crops is None else min(width, crops.longest)
        positions = torch.arange(width, device=frames.device)
        mask = positions < on_device(clip_lengths[:, None], frames.device)
        index = (on_device(begin[:, None], frames.device) + positions).clamp(max=len(frames) - 1)
        return Series(frames[index].masked_fill(~mask[..., None], 0), clip_lengths)


def _fits_on_gpu(size: int, device: torch.device) -> bool:
    """Return whether a GPU has room for `size` bytes of frames in addition to a training step; false for the CPU."""
    if device.type != "cuda":
        return False
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    free -= torch.cuda.max_memory_allocated(device)
    fits = size < RESIDENT_SHARE * free
    residence = "the frames are copied to the GPU" if fits else "the frames are read from the banks for each batch"
    log.info(
        "the frames of all clips take %.1f GiB, and a training step leaves %.1f GiB of GPU memory: %s",
        size / 2**30,
        free / 2**30,
        residence,
    )
    return fits


class Feed:
    """Source of a stage's batches, on the device. Call `close` when the stage ends.

    Threads make the next batches during the current step. After the first step, the memory of the optimizer is known.
    If the GPU then has twice as much free memory as the frames of all clips need, `copy_frames_if_room` copies them to
    it. They are not copied if clips are mixed. Captions, and the factors that lower the margin of the ranking loss,
    are always made during earlier steps. A batch depends only on its step, so that these choices change no result. With
    several processes, each process only gets its part of a batch.

    longest: Maximum number of frames per clip; longer clips are cut to a random part; None: all frames. chunk: Number
    of clips that are embedded at a time. pad_to_batch: Pad to the longest clip of the whole batch, even if this process
    does not get that clip. frames_on: "gpu": copy the frames to the GPU before the first step; "host": never copy them;
    "auto": decide after the first step by the free memory.
    """

    def __init__(
        self,
        sampler: Sampler,
        features: Features,
        relevance: Relevance | None,
        device: torch.device,
        teachers: Teachers | None = None,
        longest: int | None = None,
        chunk: int | None = None,
        pad_to_batch: bool = False,
        frames_on: Literal["auto", "gpu", "host"] = "auto",
    ) -> None:
        """Prepare threads that make a stage's batches. longest: Most frames per clip. chunk: Clips embedded at once."""
        self.chunk, self.pad_to_batch = chunk, pad_to_batch
        self.sampler, self.features, self.device, self.longest = sampler, features, device, longest
        self.relevance, self.teachers = relevance, teachers
        self._keys = {features.keys[item.clip.id] for stream in sampler.streams for item in stream.items}
        mixes = sampler.augment is not None and sampler.augment.mixes
        self._undecided = frames_on == "auto" and not (mixes or features.waveforms == "files")
        self.resident = Resident(self._keys, features, device) if frames_on == "gpu" else None
        # One thread computes CIDEr-D; several read frames, since a batch of waves is 100 MB or more.
        count = batches_ahead(relevance is not None) if self.resident is None else 1
        self._workers, self._ahead_steps = ThreadPoolExecutor(count, "batches"), count
        self._ahead: dict[int, Future[Batch]] = {}

    def copy_frames_if_room(self) -> None:
        """Copy the frames to the GPU if they fit. Training calls this after each step; only the first call acts."""
        if not self._undecided:
            return
        self._undecided = False
        if _fits_on_gpu(Resident.bytes_needed(self._keys, self.features), self.device):
            for future in self._ahead.values():  # batches with frames that are not needed any more
                future.cancel()
            self._ahead.clear()
            self._ahead_steps, self.resident = 1, Resident(self._keys, self.features, self.device)

    def batch(self, step: int) -> Batch:
        """Return the batch of training step `step`, and start to make the batches of the next steps in threads."""
        made = (self._ahead.pop(step, None) or self._start_batch(step)).result()
        steps = range(step + 1, step + 1 + self._ahead_steps)
        for other in self._ahead.keys() - set(steps):
            self._ahead.pop(other).cancel()
        for other in steps:
            if other not in self._ahead:
                self._ahead[other] = self._start_batch(other)
        if self.resident is None:
            return made.to(self.device)
        keys, crops = made.clip_keys, self._draw_crops(step)
        if made.share:
            rows = made.share.rows
            keys, crops = [keys[row] for row in rows], crops and crops._replace(offsets=crops.offsets[rows])
        audio = self.resident.gather_audio(keys, crops, made.clip_keys if self.pad_to_batch else ())
        return replace(made.to(self.device), audio=audio)

    def _draw_crops(self, step: int) -> Crops | None:
        """Draw the random crops of long clips for a step; None if all frames are used."""
        return None if self.longest is None else Crops(self.longest, self.sampler.crop_offsets(step))

    def _start_batch(self, step: int) -> "Future[Batch]":
        """Start to make the batch of a training step in a thread, and return the future of the batch.

        The calling thread draws the items, since only one thread may use a sampler.
        """
        return self._workers.submit(self._make_batch, self.sampler.batch(step), self._draw_crops(step))

    def _make_batch(self, items: Sequence[Item], crops: Crops | None) -> Batch:
        """Return the batch of the training items `items`, with audio only of the clips that this process embeds."""
        share = None
        if process_count() > 1:
            lengths = frame_counts(items, self.features, next(iter(self.features.banks)), self.longest)
            share = Share(divide_into_chunks(lengths, self.chunk, process_count()), process_index(), process_count())
        if self.resident is not None:
            return replace(make_batch_without_audio(items, self.features, self.relevance, self.teachers), share=share)
        made = collate(items, self.features, self.relevance, self.teachers, crops, share, self.pad_to_batch)
        return made.pin_audio() if self.device.type == "cuda" else made

    def close(self) -> None:
        """Stop the threads that make batches."""
        self._workers.shutdown(cancel_futures=True)
