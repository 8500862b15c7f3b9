"""Use a trained model from Python.

Compute embeddings of texts and sounds, and rank sounds for texts. Example: system/README.md.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from data_tools.audio import readable_seconds
from data_tools.cli import counted
from data_tools.errors import DataError, KitError, kit_errors
from data_tools.manifest import Clip, Query, audio_clip
from data_tools.names import is_audio_name
from data_tools.waves import Waves, waves_of, write_waves
from system.ranking.base import Ranker
from system.ranking.listing import Listed, list_clips
from system.runs.rankers import open_ranker

log = logging.getLogger(__name__)
TEXT_HINT = "give one text, or a list of texts"
AUDIO_HINT = "give a folder, a manifest (.jsonl), or one or more files"
Texts = str | Sequence[str]
Audio = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Found(NamedTuple):
    """A ranked clip. score: Higher is better."""

    path: str
    score: float


class Retriever:
    """Embeds texts and sounds, and ranks sounds for texts, by a trained model.

    A single text or file is treated as a list with one item. Every error is a KitError, also for an empty list.
    Embeddings have unit length, so that their dot products are the scores of a model with cosine scores. With
    normalize=False, the embeddings are not scaled.
    """

    def __init__(self, ranker: Ranker) -> None:
        """Store the model's ranker, which load_model opens."""
        self.ranker = ranker

    @kit_errors
    def encode_text(self, texts: Texts, normalize: bool = True) -> np.ndarray:
        """Embed texts, in their order. normalize: Scale the vectors to length 1. Returns: (N, D) float32.

        A warning is logged for texts without any word that the model knows. All such texts have the same vector.
        Raises KitError for a model without a single vector per text.
        """
        texts = _to_texts(texts)
        if unknown := self.ranker.without_known_words(texts):
            log.warning(
                "the model knows no word of %s, such as %r; such texts have equal embeddings",
                counted(len(unknown), "text"), unknown[0],
            )  # fmt: skip
        return self.ranker.text_vectors(texts, normalize)

    @kit_errors
    def encode_audio(self, audio: Audio | Waves, rate: int | None = None, normalize: bool = True) -> np.ndarray:
        """Embed C audio files or waves, in their order. Returns: (C, D) float32.

        Args:
            audio: A folder with its subfolders, a manifest (.jsonl), a file, or a list of files. It may also be one
                wave or a list of waves, each (samples,) or (samples, channels) of floats with full scale 1.0.
            rate: Sample rate of the waves, in Hz.
            normalize: Scale the embeddings to length 1.
        For a folder or a manifest, `clips_of` returns the clips in the same order.
        Raises: KitError for a broken file, and for a model without a single vector per clip.
        """
        if (waves := waves_of(audio)) is None:
            return self.encode_clips(self.clips_of(audio), normalize)  # type: ignore[arg-type]
        with TemporaryDirectory() as folder:
            return self.encode_clips(self.clips_of(write_waves(waves, rate, Path(folder))), normalize)

    @kit_errors
    def encode_clips(self, clips: Sequence[Clip], normalize: bool = True) -> np.ndarray:
        """Embed clips, as from `clips_of`, in their order: (C, D) float32. normalize: Scale the vectors to length 1."""
        if not clips:
            raise KitError("the list of clips is empty; give at least one clip")
        once = {clip.id: clip for clip in clips}
        pool = self.ranker.open(Listed(list(once.values())), strict=True)
        rows = {clip_id: row for row, clip_id in enumerate(once)}
        return self.ranker.clip_vectors(pool, normalize)[[rows[clip.id] for clip in clips]]

    @kit_errors
    def rank(self, texts: Texts, audio: Audio, top: int = 10) -> list[list[Found]]:
        """Return the best `top` clips of each text, best first; equal scores are ordered by file name.

        audio: A folder, a manifest, a file, or a list of files. Broken files are skipped with a warning. Raises
        KitError for a text without any word that the model knows, and if no file is readable.
        """
        texts = _to_texts(texts)
        if not isinstance(top, Integral) or top < 1:
            raise KitError(f"top is {top!r}; give a whole number of at least 1")
        if waves_of(audio) is not None:
            raise KitError(
                "rank needs audio files, not waves; write the waves to files, or compare embeddings of encode_audio"
            )
        if unknown := self.ranker.without_known_words(texts):
            raise KitError(f"the model knows no word of {unknown[0]!r}; reword it")
        pool = self.ranker.open(Listed(list({clip.id: clip for clip in self.clips_of(audio)}.values())))
        queries = [Query(id=text, text=text, relevant=None) for text in texts]
        found = self.ranker.best(queries, pool, min(int(top), len(pool.clips)))
        return [[Found(pool.clips[hit.row].path, hit.score) for hit in hits] for hits in found]

    @kit_errors
    def clips_of(self, audio: Audio) -> Sequence[Clip]:
        """List the clips in a folder, a manifest, a file or a list of files.

        Raises DataError if a file is missing.
        """
        if isinstance(audio, str | os.PathLike):
            if not is_audio_name(Path(audio).name) or Path(audio).is_dir():
                return list_clips(Path(audio), None).clips
            audio = [audio]
        audio = _to_list(audio, AUDIO_HINT)
        if odd := [path for path in audio if not isinstance(path, str | os.PathLike)]:
            raise KitError(f"{str(odd[0])[:60]!r} is not the path of a file; {AUDIO_HINT}")
        paths = [Path(os.path.abspath(path)) for path in audio]
        if not paths:
            raise KitError(f"the list of files is empty; {AUDIO_HINT}")
        if absent := [path for path in paths if not path.is_file()]:
            raise DataError(f"{absent[0]}: no such audio file; correct the path")
        return [
            audio_clip(
                Path(path.anchor),
                path.relative_to(path.anchor).as_posix(),
                "files",
                "blind",
                [],
                readable_seconds(path),
            )
            for path in paths
        ]


def _to_list(values: Any, cure: str) -> list[Any]:
    """Convert `values` to a list. Raises KitError if they cannot be listed. cure: End of the error message."""
    if isinstance(values, bytes) or not isinstance(values, Iterable):
        raise KitError(f"{str(values)[:60]!r} has the wrong type {type(values).__name__}; {cure}")
    return list(values)


def _to_texts(texts: Texts) -> list[str]:
    """Convert one text or several texts to a list. Raises KitError for an empty list or an item that is no text."""
    found = [texts] if isinstance(texts, str) else _to_list(texts, TEXT_HINT)
    if not found:
        raise KitError("the list of texts is empty; give at least one text")
    if odd := [text for text in found if not isinstance(text, str)]:
        raise KitError(f"{odd[0]!r} is not a text; {TEXT_HINT}")
    return found


@kit_errors
def load_model(
    folder: str | os.PathLike[str],
    stage: str | None = None,
    checkpoint: str | None = None,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Retriever:
    """Open a run or an exported model by its folder, or a Hugging Face model by its name or folder.

    stage, checkpoint: Stage and checkpoint of a run; None: as in the run's first rank entry that can rank any clips.
    device: cuda, cuda:1, mps or cpu; None for CUDA if the machine has a GPU, else the CPU. cache: Folder for embeddings
    of clips; None for lbar-kit in the user's cache directory.
    Raises KitError for a missing device, for arguments that do not fit the model, and for a model that is not on this
    machine; DataError for a missing or damaged file.
    """
    if not isinstance(folder, str | os.PathLike):
        raise KitError(f"{folder!r} is not a path; give the folder of a run or of an exported model")
    kept = Path(cache) if cache else None
    return Retriever(open_ranker(Path(folder), stage, checkpoint, device=device, cache=kept))
