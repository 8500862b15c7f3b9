"""Search a pool.

Find the best clips of a pool for queries. The web page and the verb `search` use it.
"""

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data_tools.manifest import Clip, Query
from submission.ordering import require_finite
from system.ranking.base import Hit, Pool, Ranker

TRIAL = "a sound"  # a query
MAX_EXAMPLE = 90  # characters of an example query
SHOWN_WINDOWS = 3  # of a hit

log = logging.getLogger(__name__)


class SearchQuery(NamedTuple):
    """A query: its text, the maximum number of clips, and the number of better clips that are skipped."""

    text: str
    max_results: int
    offset: int = 0


class Answer(NamedTuple):
    """Result of a query. hits: The found clips, best first; None if the model knows no word of the query. unknown:
    Words of the query that the model does not know.
    """

    hits: list[Hit] | None
    unknown: list[str]


class Search:
    """Searches a pool of clips by the ranker that has opened it. It is not thread-safe."""

    def __init__(self, ranker: Ranker, pool: Pool) -> None:
        """Store the ranker and its pool, and score a first query, which loads the model.

        Raises SubmissionError if a score is not finite.
        """
        self.ranker, self.pool, self.clips = ranker, pool, pool.clips
        self.paths = _paths_below_common_folder(pool.clips)
        ranker.forget_queries()  # queries are private, and would fill the memory of a page served for weeks
        if not ranker.without_known_words([TRIAL]):  # loads everything before the first real query
            for scores in ranker.scores([_make_query(TRIAL)], pool):
                require_finite(scores)
            list(ranker.best([_make_query(TRIAL)], pool, 1))

    def answer(self, queries: Sequence[SearchQuery]) -> list[Answer]:
        """Find the best clips of each query and, in long recordings, also the times of the sound.

        All queries are embedded together, which changes scores only by rounding. Clips with equal scores are ordered by
        file name.
        """
        texts = list(dict.fromkeys(query.text for query in queries))
        unreadable = set(self.ranker.without_known_words(texts))
        known = [text for text in texts if text not in unreadable]
        hits: dict[str, list[Hit]] = {}
        if known:
            last = min(max(query.offset + query.max_results for query in queries), len(self.clips))
            hits = dict(zip(known, self.ranker.best(list(map(_make_query, known)), self.pool, last), strict=True))
        answers = []
        for query in queries:
            found = hits.get(query.text)
            if found is not None:
                found = self._with_times(query.text, found[query.offset :][: query.max_results])
            answers.append(Answer(found, self.ranker.unknown_words(query.text)))
        return answers

    def _with_times(self, text: str, hits: list[Hit]) -> list[Hit]:
        """Return the found clips `hits`, with the times of the sound `text` if the ranker finds times."""
        located = self.ranker.find_times(text, self.pool, [hit.row for hit in hits]) if hits else None
        if located is None:
            return hits
        return [hit._replace(located=one) for hit, one in zip(hits, located, strict=True)]

    def rows(self, hits: Sequence[Hit]) -> list[dict[str, Any]]:
        """Return found clips as path, score and the best windows in seconds, or None."""
        return [
            {
                "path": self.clips[hit.row].path,
                "score": round(hit.score, 6),
                "windows": hit.located and [
                    (round(one.start, 3), round(one.end, 3)) for one in hit.located.windows[:SHOWN_WINDOWS]
                ],
            }
            for hit in hits
        ]  # fmt: skip

    def examples(self, count: int) -> list[str]:
        """Return up to `count` example queries: captions of clips that are spread evenly over the pool."""
        captions = list(dict.fromkeys(clip.captions[0] for clip in self.clips if clip.captions))
        spread = [text for text in captions[:: max(1, len(captions) // (8 * count))] if len(text) <= MAX_EXAMPLE]
        unreadable = set(self.ranker.without_known_words(spread))
        known = [text for text in spread if text not in unreadable]
        return known[:: max(1, len(known) // count)][:count]


def print_found(ranker: Ranker, pool: Pool, texts: Sequence[str], top: int, as_json: bool = False) -> bool:
    """Print the best clips of each query, with times; return whether the model knows a word of every query."""
    search = Search(ranker, pool)
    found: list[dict[str, Any]] = [
        {"query": text, "unknown": answer.unknown, "clips": None if answer.hits is None else search.rows(answer.hits)}
        for text, answer in zip(texts, search.answer([SearchQuery(text, top) for text in texts]), strict=True)
    ]
    if as_json:
        print(json.dumps({"clips": len(search.clips), "skipped": dict(pool.skipped), "queries": found}))
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


def _make_query(text: str) -> Query:
    """Return a Query object with the text `text`, which is also its id."""
    return Query(id=text, text=text, relevant=None)


def _paths_below_common_folder(clips: Sequence[Clip]) -> list[str]:
    """Return the path of each clip relative to the lowest folder that contains all clips.

    If the clips' file names contain folders, the relative paths contain these folders too.
    """
    paths = [str(Path(clip.path).absolute()) for clip in clips]
    depths = [len(Path(clip.file_name).parts) if clip.path.endswith(f"/{clip.file_name}") else 1 for clip in clips]
    folders = {path.rsplit(os.sep, depth)[0] or os.sep for path, depth in zip(paths, depths, strict=True)}
    top = os.path.commonpath(folders)
    return [path[len(top) :].lstrip(os.sep) for path in paths]
