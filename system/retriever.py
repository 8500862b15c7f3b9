"""A trained model from Python: texts and sounds in, embeddings and rankings out; four lines in system/README.md."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.audio.read import readable_seconds
from data_tools.errors import DataError, KitError
from data_tools.files import absolute
from data_tools.manifest import Clip, audio_clip
from data_tools.names import is_audio_name
from system.compute.device import device_of
from system.runs.open import Trained, open_trained
from system.runs.pool import Listed, cache_folder, embed, frame_banks, pool_of
from system.runs.retrieve import embed_texts, vectors
from system.serve.search import Search, SearchQuery

Texts = str | Sequence[str]
Audio = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Found(NamedTuple):
    """A clip that was found. score: higher is better."""

    path: str
    score: float


class Retriever:
    """A trained model in evaluation mode. Where several texts or files may be given, one alone is taken as a list of
    one; an empty list raises KitError.

    cache: the folder that keeps embeddings of clips, as cache_folder gives it.
    """

    def __init__(self, trained: Trained, cache: Path) -> None:
        self.trained, self.cache = trained, cache

    def encode_text(self, texts: Texts) -> np.ndarray:
        """(N, D) float32, in the order of the texts. KitError for a model that has no one vector a text."""
        return vectors(embed_texts(self.trained.model, _listed(texts)))

    def encode_audio(self, audio: Audio) -> np.ndarray:
        """(C, D) float32 of the files in their order; of a folder or a manifest in the order of `clips_of`.

        audio: a folder with its subfolders, a manifest (.jsonl), a file, or a list of files. Raises KitError for a
        file that is broken, and for a model that has no one vector a clip.
        """
        return self.encode_clips(self.clips_of(audio))

    def encode_clips(self, clips: Sequence[Clip]) -> np.ndarray:
        """(C, D) float32 of clips, as encode_audio gives them."""
        if not clips:
            raise KitError("there is no clip in the list; give one clip or more")
        once = {clip.id: clip for clip in clips}
        found = vectors(embed(self.trained, Listed(list(once.values()), {}), self.cache, strict=True).embedded)
        rows = {clip_id: row for row, clip_id in enumerate(once)}
        return found[[rows[clip.id] for clip in clips]]

    def rank(self, texts: Texts, audio: Audio, top: int = 10) -> list[list[Found]]:
        """The best `top` clips of each text, best first; equal scores stand by file name. Broken files are skipped with
        a warning. Raises KitError for a text of which the model knows no word, and when no file is readable."""
        texts = _listed(texts)
        listed = Listed(list({clip.id: clip for clip in self.clips_of(audio)}.values()), {})
        search = Search(self.trained.model, *embed(self.trained, listed, self.cache))
        answers = search.answer([SearchQuery(text, top) for text in texts])
        if unknown := [text for text, answer in zip(texts, answers, strict=True) if answer.hits is None]:
            raise KitError(f"the model knows no word of {unknown[0]!r}; reword it")
        return [[Found(search.clips[hit.row].path, hit.score) for hit in answer.hits or []] for answer in answers]

    def clips_of(self, audio: Audio) -> Sequence[Clip]:
        """The clips that a folder, a manifest, a file or a list of files means. DataError for a file that is absent."""
        if isinstance(audio, str | os.PathLike):
            if not is_audio_name(Path(audio).name) or Path(audio).is_dir():
                return pool_of(self.trained.recipe, Path(audio), None).clips
            audio = [audio]
        paths = [Path(absolute(path)) for path in audio]
        if not paths:
            raise KitError("there is no file in the list; give a folder, a manifest (.jsonl), or one file or more")
        if absent := [path for path in paths if not path.is_file()]:
            raise DataError(f"{absent[0]}: no such file")
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


def _listed(texts: Texts) -> list[str]:
    found = [texts] if isinstance(texts, str) else list(texts)
    if not found:
        raise KitError("there is no text in the list; give one text or more")
    if odd := [text for text in found if not isinstance(text, str)]:
        raise KitError(f"{odd[0]!r} is no text; give one text, or a list of texts")
    return found


def load_model(
    folder: str | os.PathLike[str],
    stage: str | None = None,
    checkpoint: str | None = None,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Retriever:
    """Open a run or an exported model, as open_trained does.

    device: cuda, cuda:1, mps or cpu; None for CUDA where there is one, else the CPU. KitError for one that is not here.
    cache: keeps embeddings of clips (default: lbar-kit in the user's cache directory).
    """
    kept = cache_folder(Path(cache) if cache else None)
    trained = open_trained(Path(folder), stage, checkpoint, device=device_of(device), banks=frame_banks(kept))
    return Retriever(trained, kept)
