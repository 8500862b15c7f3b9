"""Embed clips and captions in evaluation mode."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from data_tools.cli import counted, progress
from data_tools.errors import KitError
from data_tools.manifest import Clip, Query
from system.batches.items import Item
from system.batches.loader import collate
from system.features.extract import Features, read_ahead
from system.models.batch import Embedded, Embeddings, Ragged, unit_vectors
from system.models.retrieval import RetrievalModel

# C clips, T frames, N texts, D embedding

CLIPS_PER_BATCH = 64
SECONDS_PER_BATCH = 64 * 30  # of audio, with every clip padded to the longest of the batch


@contextmanager
def _evaluation_mode(model: RetrievalModel) -> Iterator[None]:
    """Turn off a model's dropout and gradients for a block."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def embed_clips(model: RetrievalModel, clips: Sequence[Clip], features: Features) -> Embeddings:
    """Embed clips, in their order."""
    found = dict(embed_each(model, clips, features))
    ordered = [found[number] for number in range(len(clips))]
    return Embedded(torch.stack(ordered)) if ordered[0].ndim == 1 else Ragged(ordered)


def embed_each(model: RetrievalModel, clips: Sequence[Clip], features: Features) -> Iterator[tuple[int, torch.Tensor]]:
    """Embed clips in batches of similar length, the shortest first.

    Padding changes no embedding.

    Yields:
        A clip's index, and its vector (D,) or its series (T, D) without padding.
    """
    lengths = _frame_counts(clips, features)
    order = np.argsort(lengths, kind="stable")
    groups = [order[part] for part in _batch_slices(lengths[order], [clips[n].seconds or 0.0 for n in order])]
    batches = read_ahead(lambda group: collate([Item(clips[n], ()) for n in group], features), groups, 1)
    with progress("embedding clips", len(clips), "clip", keep=False) as bar:
        for group, batch in zip(groups, batches, strict=True):
            with _evaluation_mode(model):
                found = model.audio(batch.to(model.device).audio)
                values = found.values.unbind()
                if found.lengths is not None:  # copies free the padding
                    values = [one[:size].clone() for one, size in zip(values, found.lengths.tolist(), strict=True)]
            yield from zip(group.tolist(), values, strict=True)
            bar.update(found.size)


def _frame_counts(clips: Sequence[Clip], features: Features) -> np.ndarray:
    bank = next(iter(features.banks.values()))
    return np.array([bank.rows_of(features.keys[clip.id]) for clip in clips], dtype=np.int64)


def _batch_slices(lengths: Sequence[int] | np.ndarray, seconds: Sequence[float]) -> Iterator[slice]:
    """Divide clips, sorted by their number of frames, into batches.

    A batch has a single clip, or at most CLIPS_PER_BATCH clips, at most SECONDS_PER_BATCH of audio after padding to its
    longest clip, and at most half of its frames are padding.
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
    """Embed texts, in their order."""
    with _evaluation_mode(model):
        found: Embedded = model.text(texts)
        return found


def vectors(embedded: Embeddings, normalize: bool = True) -> np.ndarray:
    """Convert embeddings to an array (N, D) float32.

    Args:
        normalize: Scale vectors to length 1; zeros stay zeros.

    Raises:
        KitError: The model has no single vector per clip or text.
    """
    if embedded.lengths is not None:
        raise KitError("this model compares frames with words and has no single vector per clip or text; use lbar rank")
    values = unit_vectors(embedded) if normalize else embedded.values
    found: np.ndarray = values.float().cpu().numpy()
    return found


def refuse_broken(ids: Iterable[str], broken: Mapping[str, str], where: str) -> None:
    """Raise KitError if a clip cannot be read."""
    if lost := sorted(broken.keys() & set(ids)):
        some = counted(len(lost), "clip", ",")
        raise KitError(f"{where}: {some} cannot be read, first {lost[0]}: {broken[lost[0]]}; repair or remove them")


def require_known_words(model: RetrievalModel, queries: Sequence[Query]) -> None:
    """Refuse queries without any word that a model knows.

    All clips would have the same score for them.
    """
    unknown = set(model.text.without_known_words([query.text for query in queries]))
    if named := [query for query in queries if query.text in unknown]:
        first = f"{counted(len(named), 'query')}, first {named[0].id} ({named[0].text[:60]!r})"
        raise KitError(f"the model knows no word of {first}, or has no embedding; reword them, or add --allow-unknown")
