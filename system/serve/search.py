"""Search a pool by words or by one of its clips, for the page and the verb `search`."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_tools.errors import KitError
from data_tools.manifest import Query
from system.ranking.base import Hit, Pool, Ranker
from system.ranking.listing import list_clips

# C clips, D embedding

SHOWN_WINDOWS = 3  # of a hit

log = logging.getLogger(__name__)


class Search:
    """Searches the pool of a ranker; for one thread at a time."""

    def __init__(self, ranker: Ranker, pool: Pool, audio: Path | None = None, split: str | None = None) -> None:
        """Keep the pool; `audio` and `split` are what it was listed from, to find added files."""
        ranker.forget_queries()  # they are private, and would fill the memory of a page that is served for weeks
        self.ranker, self.pool = ranker, pool
        self._audio, self._split, self._files = audio, split, _files_in(audio)

    def refresh(self) -> None:
        """Open the pool again if files were added, changed or removed; keep it if no clip is left."""
        files = _files_in(self._audio)
        if self._audio and files != self._files:
            self._files, self.pool = files, self.ranker.open(list_clips(self._audio, self._split))

    def find(self, text: str, count: int, offset: int = 0) -> list[Hit] | None:
        """Return the best clips of a query, after the first `offset`, with times if the model finds them.

        Clips with equal scores are sorted by file name. None if the model knows no word of the query.
        """
        if self.ranker.without_known_words([text]):
            return None
        last = min(offset + count, len(self.pool.clips))
        (hits,) = self.ranker.best([Query(id=text, text=text, relevant=None)], self.pool, last)
        hits = hits[offset:]
        times = self.ranker.find_times(text, self.pool, [hit.row for hit in hits]) if hits else None
        return hits if times is None else [hit._replace(located=one) for hit, one in zip(hits, times, strict=True)]

    def like(self, clip: str, count: int, offset: int = 0) -> list[Hit]:
        """Return the clips whose embeddings have the highest cosine with that of a clip, which is the first."""
        rows = {one.id: row for row, one in enumerate(self.pool.clips)}
        if clip not in rows:
            raise KitError(f"no clip {clip[:80]}; search again")
        vectors = self.ranker.clip_vectors(self.pool)  # (C, D), of unit length
        scores = vectors @ vectors[rows[clip]]
        best = self.pool.order.best(scores[None], min(offset + count, len(scores)))[0]
        return [Hit(int(row), float(scores[row])) for row in best[offset:]]

    @property
    def compares_clips(self) -> bool:
        """Whether the model has one vector per clip, so that `like` works."""
        try:
            self.ranker.clip_vectors(self.pool)
        except KitError:
            return False
        return True


def print_found(ranker: Ranker, pool: Pool, texts: Sequence[str], top: int, as_json: bool = False) -> bool:
    """Print the best clips of each query, with times; return whether the model knows a word of every query."""
    search = Search(ranker, pool)
    found: list[dict[str, Any]] = []
    for text in texts:
        hits = search.find(text, top)
        clips = None if hits is None else [_shown(pool, hit) for hit in hits]
        found.append({"query": text, "unknown": ranker.unknown_words(text), "clips": clips})
    if as_json:
        print(json.dumps({"clips": len(pool.clips), "skipped": dict(pool.skipped), "queries": found}))
    for one in found if not as_json else ():
        print(one["query"])
        if one["clips"] and one["unknown"]:
            print(f"      words that the model does not know: {', '.join(one['unknown'])}")
        for rank, clip in enumerate(one["clips"] or (), 1):
            times = ", ".join(f"{start:.2f} to {end:.2f} s" for start, end in clip["windows"] or ())
            print(f"{rank:4}  {clip['score']:7.4f}  {clip['path']}  {times}".rstrip())
    unread = [one["query"] for one in found if one["clips"] is None]
    for text in unread:
        log.error("error: the model knows no word of %r; reword it", text[:60])
    return not unread


def _shown(pool: Pool, hit: Hit) -> dict[str, Any]:
    """Return the path, the score and the best windows, in seconds, of a hit."""
    windows = hit.located and [(round(one.start, 3), round(one.end, 3)) for one in hit.located.windows[:SHOWN_WINDOWS]]
    return {"path": pool.clips[hit.row].path, "score": round(hit.score, 6), "windows": windows}


def _files_in(audio: Path | None) -> set[tuple[str, int, int]]:
    """Return the paths, sizes and times of the files in a folder, or of a manifest."""
    paths = [] if audio is None else audio.rglob("*") if audio.is_dir() else [audio]
    return {(str(path), (status := path.lstat()).st_size, status.st_mtime_ns) for path in paths}
