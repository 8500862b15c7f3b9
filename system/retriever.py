"""A trained model that embeds, ranks, and finds times.

All that ranks goes through a Retriever: `run`, `rank`, `locate`, `search`, `serve`, `embed`, and your own Python.

    model = load_model("runs/RUN")
    scores = model.similarity(model.encode_text(["a dog barks"]), model.encode_audio(["a.wav", "b.wav"]))
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from data_tools.cli import counted
from data_tools.errors import KitError, kit_errors
from data_tools.manifest import Clip, Query, audio_clip, folder_clips, of_split, read_manifest
from data_tools.names import is_audio_name
from submission.formats.score_matrix import ScoreMatrix, matrix_from_blocks
from submission.ordering import ClipOrder, require_finite
from system.devices import device_of
from system.features.extract import Features, build_features
from system.models.batch import Embedded, Embeddings, Ragged, Units, are_units, unit_vectors
from system.models.scores import MomentScore
from system.moments.windows import MAX_FRAMES, By, Decoding
from system.ranking.embedding import cache_folder, embed_cached, embed_clips, embed_texts, require_readable, vectors
from system.ranking.entries import RankHubCorrected, matrix_labels
from system.ranking.windows import Located, find_windows, frame_series
from system.recipe.load import as_change
from system.runs.open import Trained, open_trained
from system.waves import as_files, is_path, sounds_of

# Q queries, C clips, N texts, D embedding

Texts = str | Sequence[str]
Audio = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Vectors = np.ndarray | torch.Tensor
SOUNDS_AT_ONCE = 64  # from memory, written to files
log = logging.getLogger(__name__)


class Hit(NamedTuple):
    """A clip found for a query."""

    row: int  # in the pool
    path: str
    score: float  # higher is better
    located: Located | None = None  # times of the query, if the model finds them


@dataclass(kw_only=True)
class Pool:
    """Clips that can be ranked, with their embeddings."""

    clips: Sequence[Clip]
    embedded: Embeddings
    skipped: Mapping[str, str] = field(default_factory=dict)  # why a file is left out, by its path

    @cached_property
    def order(self) -> ClipOrder:
        """Order of clips with equal scores, by file name."""
        return ClipOrder([clip.file_name for clip in self.clips])


class WindowSettings(NamedTuple):
    """How a model of moments finds windows."""

    score: MomentScore
    by: By = "overlap"
    decoding: Decoding = Decoding()


class Retriever:
    """A trained model.

    Faults of files and texts are KitErrors. A single text or file counts as a list.
    """

    def __init__(self, trained: Trained, cache: Path | None = None, features: Features | None = None) -> None:
        """Create the retriever.

        Args:
            cache: Folder of cached embeddings; None: the default one.
            features: Frames of all clips, if they are known; nothing is cached then.
        """
        self.model, self.recipe, self.facts, self.folder = trained.model, trained.recipe, trained.facts, trained.folder
        self._trained, self._cache, self._features = trained, cache, features

    def __repr__(self) -> str:
        """Name the model, its checkpoint, size and device."""
        return f"Retriever({self.folder}, {self.facts.checkpoint}, {self.dim} values, {self.model.device})"

    @property
    def dim(self) -> int:
        """Number of values per embedding."""
        return self.recipe.model.text.dim

    @property
    def sampling_rate(self) -> int | None:
        """Highest sample rate (Hz) that the model hears, if any."""
        return max((expert.rate for expert in self.recipe.model.audio.experts.values()), default=None)

    @kit_errors
    def encode_text(self, texts: Texts, normalize: bool | None = None) -> np.ndarray:
        """Embed texts: (N, D) float32.

        Args:
            normalize: Scale vectors to length 1; default: if the model's score depends only on directions.
        """
        texts = _to_texts(texts)
        if unknown := self.model.text.without_known_words(texts):
            log.warning(
                "the model knows no word of %s, such as %r; such texts have equal embeddings",
                counted(len(unknown), "text"), unknown[0],
            )  # fmt: skip
        return self._vectors(embed_texts(self.model, texts), normalize)

    @kit_errors
    def encode_audio(
        self, audio: Any, rate: int | None = None, normalize: bool | None = None, split: str | None = None
    ) -> np.ndarray:
        """Embed sounds: (C, D) float32.

        The rows are in the order of the list, of the manifest's lines, or of a folder's sorted file names.

        Args:
            audio: A folder with its subfolders, or a manifest (.jsonl). Or a sound or a list of sounds: files, clips,
                open files, arrays or tensors of samples, (n,), (1, n) or (n, channels), floats with full scale 1.0 or
                signed integers of at most 32 bits; or the dicts or decoders of a Hugging Face data set.
            rate: Sample rate of arrays, in Hz.
            normalize: As for texts.
            split: Of a manifest; None: all.
        """
        return np.concatenate([self._vectors(clips, normalize) for clips in self._embed_sounds(audio, rate, split)])

    def _embed(self, clips: Sequence[Clip]) -> Embeddings:
        """Return the embedding of each clip; one may come twice."""
        pool = self.open(clips, strict=True)
        rows = {clip.id: row for row, clip in enumerate(pool.clips)}
        return pool.embedded.rows([rows[clip.id] for clip in clips])

    def _embed_sounds(self, audio: Any, rate: int | None, split: str | None = None) -> Iterator[Embeddings]:
        """Yield embeddings of blocks of sounds; only those of files are stored."""
        sounds = sounds_of(audio)
        if _are_files(sounds):
            yield self._embed(list_clips(audio if is_path(audio) else sounds, split))
            return
        for start in range(0, len(sounds), SOUNDS_AT_ONCE):
            with TemporaryDirectory() as folder:
                block = [sounds[number] for number in range(start, min(start + SOUNDS_AT_ONCE, len(sounds)))]
                recipe = self.recipe.model_copy(update={"banks": folder})
                other = Retriever(replace(self._trained, recipe=recipe), Path(folder))
                yield other._embed(list_clips(as_files(block, rate, Path(folder))))

    @kit_errors
    def score_sounds(self, texts: Texts, sounds: Any, rate: int | None = None) -> np.ndarray:
        """Score texts against sounds in any form: (N, C)."""
        captions = embed_texts(self.model, _to_texts(texts))
        found = [list(self.model.score_blocks(captions, clips)) for clips in self._embed_sounds(sounds, rate)]
        return np.concatenate([np.concatenate(blocks) for blocks in found], axis=1)

    def _vectors(self, embedded: Embeddings, normalize: bool | None) -> np.ndarray:
        return vectors(embedded, self.model.unit_length if normalize is None else normalize)

    @kit_errors
    def similarity(self, texts: Vectors, clips: Vectors) -> np.ndarray:
        """Score embeddings as `rank` does: (N, C), higher is better.

        Args:
            texts: (N, D), as `encode_text` returns them by default.
            clips: (C, D), as `encode_audio` returns them by default.
        """
        pair = [torch.as_tensor(one, dtype=torch.float32, device=self.model.device) for one in (texts, clips)]
        if any(one.ndim != 2 or one.shape[1] != self.dim or not bool(one.isfinite().all()) for one in pair):
            raise KitError(f"embeddings must be finite, of shape (number, {self.dim}), as the model returns them")
        captions, sounds = map(Units if self.model.unit_length and all(map(are_units, pair)) else Embedded, pair)
        with torch.inference_mode():
            return self.model.score_matrix(captions, sounds)

    @kit_errors
    def search(self, texts: Texts, audio: Audio | Pool, top: int = 10, offset: int = 0) -> list[list[Hit]]:
        """Return the best clips of each text, best first.

        Equal scores are ordered by file name. Broken files are skipped with a warning. A model of moments finds the
        times of the text, too. A text without any word that the model knows is an error.

        Args:
            offset: Number of best clips to leave out.
        """
        texts = _to_texts(texts)
        if top < 1 or offset < 0:
            raise KitError(f"top is {top}, offset {offset}; give at least 1 and 0")
        if not isinstance(audio, Pool) and not _are_files(sounds_of(audio)):
            raise KitError("search needs audio files, not waves; write the waves to files, or compare embeddings")
        self.require_known(texts)
        self.model.text.caches_texts = False  # what people search for is private, and would fill the memory of a page
        pool = audio if isinstance(audio, Pool) else self.open(list_clips(audio))
        best, scores = self.best(texts, pool, min(int(top) + offset, len(pool.clips)))
        found = []
        for text, rows, values in zip(texts, best[:, offset:].tolist(), scores[:, offset:].tolist(), strict=True):
            hits = zip(rows, values, self.find_windows(text, pool, rows), strict=True)
            found.append([Hit(row, pool.clips[row].path, value, located) for row, value, located in hits])
        return found

    def require_known(self, texts: Sequence[str]) -> None:
        """Refuse texts without any word that the model knows."""
        if unknown := self.model.text.without_known_words(texts):
            raise KitError(f"the model knows no word of {unknown[0][:60]!r}; reword it")

    def best(self, texts: Sequence[str], pool: Pool, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and scores (N, K) of texts' best clips."""
        found = []
        for block in self.score_blocks(texts, pool):
            require_finite(block)
            rows = pool.order.best(block, count)
            found.append((rows, np.take_along_axis(block, rows, axis=1)))
        best, scores = map(np.concatenate, zip(*found, strict=True))
        return best, scores

    def open(self, clips: Sequence[Clip], strict: bool = False) -> Pool:
        """Embed readable clips, or read their stored embeddings.

        Args:
            strict: Raise KitError if a clip cannot be read.
        """
        settings, clips = self.recipe.model, list({clip.id: clip for clip in clips}.values())
        where = f"model {self.folder}"
        if self._features or not settings.audio.reads_clips:
            features = self.frames_of(clips)
            broken = features.broken
            known = [clip for clip in clips if clip.id in features.keys or clip.id in broken]
            readable = require_readable(known, broken, where, strict)
            embedded = embed_clips(self.model, readable, features)
        else:
            banks, folder = Path(self.recipe.banks), cache_folder(self._cache)
            readable, embedded, broken = embed_cached(self.model, settings, clips, banks, folder, where, strict)
        skipped = {clip.path: broken[clip.id] for clip in clips if clip.id in broken}
        if not self._features:
            used, left_out = counted(len(readable), "clip"), counted(len(skipped), "file")
            log.info("using %s; skipped %s that cannot be read", used, left_out)
        return Pool(clips=readable, embedded=embedded, skipped=skipped)

    def scores(self, texts: Sequence[str], pool: Pool) -> np.ndarray:
        """Score all texts against all clips: (N, C) float32."""
        return np.concatenate(list(self.score_blocks(texts, pool)))

    def score_blocks(self, texts: Sequence[str], pool: Pool) -> Iterator[np.ndarray]:
        """Yield the scores (n, C) of blocks of texts."""
        if self.model.unit_length and isinstance(pool.embedded, Embedded):
            with torch.inference_mode():
                pool.embedded = Units(unit_vectors(pool.embedded))  # once for all queries
        return self.model.score_blocks(embed_texts(self.model, texts), pool.embedded)

    def matrix(self, queries: Sequence[Query], pool: Pool) -> ScoreMatrix:
        """Score all queries against all clips, with labels."""
        if not queries:
            raise KitError("nothing to rank: no query; give at least one")
        labels = matrix_labels(pool.clips, queries, self.facts.document())
        return matrix_from_blocks(labels, self.score_blocks([query.text for query in queries], pool))

    def find_windows(self, text: str, pool: Pool, rows: Sequence[int]) -> list[Located | None]:
        """Return the times of a text in the pool's clips.

        There are none by a model without times, and in clips with too many frames.
        """
        if self.windows is None or not isinstance(pool.embedded, Ragged):
            return [None] * len(rows)
        score, by, decoding = self.windows
        short = [row for row in rows if by == "thresholds" or len(pool.embedded.series[row]) <= MAX_FRAMES]
        if len(short) < len(rows):
            some = counted(len(rows) - len(short), "recording")
            log.warning("no times in %s of more than %s frames; cut such recordings", some, f"{MAX_FRAMES:,}")
        if not short:
            return [None] * len(rows)
        captions = embed_texts(self.model, [text]).rows([0] * len(short))
        recordings, clips = [pool.clips[row] for row in short], pool.embedded.rows(short)
        series = frame_series(self.model, clips, recordings, range(len(short)), captions)
        found = dict(zip(short, find_windows([(score, series)], decoding, by), strict=True))
        return [found.get(row) for row in rows]

    @cached_property
    def windows(self) -> WindowSettings | None:
        """How the model finds windows, if it finds times.

        Its first rank entry of moments decides. The numbers of the score are those that the entry has fitted, if they
        are of this checkpoint. Without such an entry, a model with a published threshold uses that.
        """
        if not isinstance(self.model.score, MomentScore):
            return None
        score, entry = deepcopy(self.model.score), next(iter(self.recipe.rank_moments.values()), None)
        if self.facts.fitted is not None:
            numbers = {key: torch.tensor(value) for key, value in self.facts.fitted if value is not None}
            score.load_state_dict(score.state_dict() | numbers)
        elif entry is not None and entry.fit is not None:
            hint = "open the finished run by its first entry, or rank this entry again"
            log.warning("moments are fitted to %s, but the opened model is not; %s", entry.fit, hint)
        if entry is not None:
            return WindowSettings(score, entry.windows, entry.decoding)
        if score.published_threshold is None:
            return WindowSettings(score)
        return WindowSettings(score, "thresholds", Decoding(threshold=score.published_threshold))

    def frames_of(self, clips: Sequence[Clip]) -> Features:
        """Return, or compute, the experts' frames of whole recordings."""
        experts, banks = dict(self.recipe.model.audio.experts), Path(self.recipe.banks)
        return self._features or build_features(clips, experts, banks, self.model.device, timed=True)


def list_clips(audio: Audio | Sequence[Clip], split: str | None = None) -> Sequence[Clip]:
    """List the clips of a folder, manifest, file or list.

    Args:
        audio: A folder with its subfolders, a manifest (.jsonl), a file, or a list of files or clips.
        split: Of a manifest; None: all.
    """
    if isinstance(audio, str | os.PathLike):
        path = Path(audio)
        if path.is_dir():
            return of_split(folder_clips(path, path.resolve().name), split, path)
        if not is_audio_name(path.name):
            return of_split(read_manifest(path), split, path)
        audio = [audio]
    files: list[Any] = list(audio)
    if not files:
        raise KitError("the list of files is empty; give a folder, a manifest (.jsonl), or one or more files")
    if all(isinstance(one, Clip) for one in files):
        return files
    paths = [Path(os.path.abspath(path)) for path in files]
    if absent := [path for path in paths if not path.is_file()]:
        raise KitError(f"{absent[0]}: no such audio file; correct the path")
    return [
        audio_clip(Path(path.anchor), path.relative_to(path.anchor).as_posix(), "files", "blind", []) for path in paths
    ]


def _are_files(sounds: Sequence[Any]) -> bool:
    return all(is_path(one) or isinstance(one, Clip) for one in sounds)


def _to_texts(texts: Texts) -> list[str]:
    found = [texts] if texts is None or isinstance(texts, str) else list(texts)
    if not all(isinstance(text, str) for text in found):
        raise KitError("a text is no str; leave out what is empty, or convert it")
    if not found:
        raise KitError("the list of texts is empty; give at least one text")
    return found


@kit_errors
def load_model(
    name: str | os.PathLike[str],
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    changes: Mapping[str, Any] | Sequence[str] = (),
) -> Retriever:
    """Open a trained or published model.

    It is a run (RUN, or RUN:ENTRY for the checkpoint of a rank entry), an exported model, a recipe without stages, or a
    hub model by its name or folder.

    Args:
        device: cuda, cuda:1, mps or cpu; None: CUDA if the machine has a GPU, else the CPU.
        cache: Folder for embeddings of clips; None: lbar-kit in the user's cache directory.
        changes: Settings by key, or KEY=VALUE; of a trained model only paths.
    """
    folder = cache_folder(Path(cache) if cache else None).absolute()
    banks = Path("banks").absolute() if Path("banks").is_dir() else folder / "banks"
    if isinstance(changes, Mapping):
        changes = [as_change(key, value) for key, value in changes.items()]
    trained = open_trained(Path(name), None, None, changes, device_of(str(device)) if device else None, banks)
    trained.model.eval()  # a thread that embeds restores the mode, while others embed
    if corrected := [key for key, entry in trained.recipe.rank.items() if isinstance(entry, RankHubCorrected)]:
        log.warning("without the hub correction of %s, which only the run's own entries have", ", ".join(corrected))
    return Retriever(trained, folder)
