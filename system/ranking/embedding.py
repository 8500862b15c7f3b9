"""Embed clips and captions."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from data_tools.cli import Progress, progress
from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.batches.items import Item
from system.batches.loader import collate
from system.features.extract import Features
from system.models.batch import Batch
from system.models.embeddings import Embedded, Embeddings, Ragged, concatenate_embeddings, unit_vectors
from system.models.retrieval import RetrievalModel

CLIPS_PER_BATCH = 64
SECONDS_PER_BATCH = 64 * 30  # of audio, with every clip padded to the longest of the batch


class EmbeddedPool(NamedTuple):
    """Embeddings of clips.

    clips: Vectors (C, D), or ragged series of frame embeddings. norms: Dict from expert to the norms (C,) of its
    embeddings; empty unless the model averages several experts. A larger norm has more weight in the average.
    """

    clips: Embeddings
    norms: dict[str, np.ndarray]


@contextmanager
def _evaluation_mode(model: RetrievalModel) -> Iterator[None]:
    """Context manager that turns off a model's dropout and gradients for its block.

    At the end of the block, the model returns to its earlier mode.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def embed_pool(model: RetrievalModel, clips: Sequence[Clip], features: Features) -> EmbeddedPool:
    """Embed clips in evaluation mode; return embeddings, in the order of the clips, and their norms by expert.

    All clips are embedded in one pass, so that the result is always the same.
    """
    with progress("embedding clips", len(clips), "clip", keep=False) as bar:
        return _embed_pool(model, clips, features, bar)


def _embed_pool(model: RetrievalModel, clips: Sequence[Clip], features: Features, bar: Progress) -> EmbeddedPool:
    """Embed clips, in batches of similar length. bar: Progress bar to advance."""
    with _evaluation_mode(model):
        groups, order = _batches_by_length(clips, features, model.device)
        batches: list[Embedded] = []
        norms: list[dict[str, torch.Tensor]] = []
        for batch in _read_ahead([[clips[i] for i in group] for group in groups], features):
            embedded, vectors = model.audio.embed_with_experts(batch.to(model.device).audio)
            batches.append(embedded)
            norms.append({name: values.norm(dim=1).cpu() for name, values in vectors.items()})
            bar.advance(embedded.size)
        back = order.argsort().cpu()
        names = norms[0] if norms else {}
        by_expert = {name: torch.cat([one[name] for one in norms])[back].numpy() for name in names}
        return EmbeddedPool(_join_in_order(batches, order), by_expert)


def _read_ahead(groups: Sequence[Sequence[Clip]], features: Features) -> Iterator[Batch]:
    """Yield one batch per group of clips, while a thread reads the batch of the next group."""

    def read(group: Sequence[Clip]) -> Batch:
        """Read the frames of a group of clips as one batch."""
        return collate([Item(clip, ()) for clip in group], features)

    with ThreadPoolExecutor(1, "batches") as reader:
        ahead: Future[Batch] | None = None
        for group in groups:
            current, ahead = ahead, reader.submit(read, group)
            if current is not None:
                yield current.result()
        if ahead is not None:
            yield ahead.result()


def embed_clips(model: RetrievalModel, clips: Sequence[Clip], features: Features) -> Embeddings:
    """Embed clips with the model in evaluation mode; return the embeddings, in the order of the clips."""
    return embed_pool(model, clips, features).clips


def embed_in_blocks(
    model: RetrievalModel, clips: Sequence[Clip], features: Features, size: int
) -> Iterator[tuple[list[Clip], Embeddings]]:
    """Yield blocks of at most `size` clips with their embeddings, from the shortest to the longest clip."""
    bank = next(iter(features.banks.values()))
    by_length = sorted(clips, key=lambda clip: bank.rows_of(features.keys[clip.id]))
    with progress("embedding clips", len(clips), "clip", keep=False) as bar:
        for start in range(0, len(by_length), size):
            block = by_length[start : start + size]
            yield block, _embed_pool(model, block, features, bar).clips


def _join_in_order(batches: list[Embedded], order: torch.Tensor) -> Embeddings:
    """Join the embeddings of several batches, sorted in the original order of the clips.

    batches: Embeddings of each batch. This list is emptied to save memory, since series of frames are large.
    order: Index of the clip of every row of the batches.
    """
    if batches[0].lengths is None:
        return concatenate_embeddings(batches).rows(order.argsort())
    lengths = torch.cat([batch.lengths for batch in batches if batch.lengths is not None]).to(order)[order.argsort()]
    ends = lengths.cumsum(0).tolist()
    values = batches[0].values.new_empty(ends[-1], batches[0].values.shape[2])
    rows = iter(order.tolist())
    while batches:
        batch = batches.pop(0)
        for series, row in zip(batch.values, rows, strict=False):
            begin = ends[row - 1] if row else 0
            values[begin : ends[row]] = series[: ends[row] - begin]
    return Ragged(values, lengths)


def _batches_by_length(
    clips: Sequence[Clip], features: Features, device: torch.device
) -> tuple[list[list[int]], torch.Tensor]:
    """Group clips of similar length; return a list of clip indexes per batch, and all indexes in one tensor.

    Similar lengths reduce padding. Padding changes no embedding.
    """
    bank = next(iter(features.banks.values()))
    lengths = [bank.rows_of(features.keys[clip.id]) for clip in clips]
    order = sorted(range(len(clips)), key=lengths.__getitem__)
    groups = _batch_slices([lengths[i] for i in order], [clips[i].seconds or 0.0 for i in order])
    return [order[group] for group in groups], torch.tensor(order, device=device)


def _batch_slices(lengths: Sequence[int], seconds: Sequence[float]) -> Iterator[slice]:
    """Divide clips, sorted by length, into batches; yield each batch as a slice of the clips.

    A batch has a single clip, or it obeys three limits. It has at most CLIPS_PER_BATCH clips. It has at most
    SECONDS_PER_BATCH of audio after padding to its longest clip. At most half of its frames are padding.

    lengths: Frames per clip, ascending. seconds: Duration of each clip; 0 if not known.
    """
    begin = total = 0
    for end, length in enumerate(lengths):
        count = end + 1 - begin
        longest = max(seconds[begin : end + 1])
        full = count > CLIPS_PER_BATCH or count * longest > SECONDS_PER_BATCH or count * length > 2 * (total + length)
        if full and end > begin:
            yield slice(begin, end)
            begin, total = end, 0
        total += length
    if len(lengths) > begin:
        yield slice(begin, len(lengths))


def embed_texts(model: RetrievalModel, texts: Sequence[str]) -> Embedded:
    """Embed texts in evaluation mode. Returns: The embeddings, in the order of the texts."""
    with _evaluation_mode(model):
        found: Embedded = model.text(texts)
        return found


def vectors(embedded: Embeddings, normalize: bool = True) -> np.ndarray:
    """Convert embeddings to a NumPy array (N, D) float32.

    Args:
        normalize: Scale the vectors to unit length, so that dot products are the model's scores; vectors of zeros are
            not changed. If False, return the encoder's output.
    Raises: KitError for a model without a single vector per clip or text.
    """
    if embedded.lengths is not None:
        raise KitError("this model compares frames with words and has no single vector per clip or text; use lbar rank")
    values = unit_vectors(embedded) if normalize else embedded.values
    found: np.ndarray = values.float().cpu().numpy()
    return found
