"""The searches of the search page, without the web: find the best clips of a pool for sentences."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from data_tools.manifest import Clip, Query
from submission.ordering import require_finite
from system.ranking.base import Hit, Pool, Ranker

MAX_EXAMPLE = 90  # characters of a query to try


class SearchQuery(NamedTuple):
    """A query: its text, the maximum number of clips, and the number of better clips that are skipped."""

    text: str
    max_results: int
    offset: int = 0


class Answer(NamedTuple):
    """hits: the clips found, best first; None where the model knows no word of the query. unknown: its words that the
    model does not know."""

    hits: list[Hit] | None
    unknown: list[str]


class Search:
    """A pool of clips, and the ranker that has opened it. It is not thread-safe."""

    def __init__(self, ranker: Ranker, pool: Pool) -> None:
        """Raises SubmissionError if a score is not finite."""
        self.ranker, self.pool, self.clips = ranker, pool, pool.clips
        self.paths = _below_common_folder(pool.clips)
        ranker.forget_queries()  # queries are private, and would fill the memory of a page served for weeks
        for scores in ranker.scores([_query("a sound")], pool):
            require_finite(scores)
        list(ranker.best([_query("a sound")], pool, 1))  # lets the first real query find everything loaded

    def answer(self, wanted: Sequence[SearchQuery]) -> list[Answer]:
        """The best clips of each query, in long recordings with where it is heard.

        All queries are embedded together; that changes no score by more than rounding. Equal scores stand in the order
        of submission.ordering: by file name.
        """
        texts = list(dict.fromkeys(query.text for query in wanted))
        unreadable = set(self.ranker.unreadable(texts))
        known = [text for text in texts if text not in unreadable]
        hits: dict[str, list[Hit]] = {}
        if known:
            last = min(max(query.offset + query.max_results for query in wanted), len(self.clips))
            hits = dict(zip(known, self.ranker.best(list(map(_query, known)), self.pool, last), strict=True))
        answers = []
        for query in wanted:
            found = hits.get(query.text)
            if found is not None:
                found = self._located(query.text, found[query.offset :][: query.max_results])
            answers.append(Answer(found, self.ranker.unknown_words(query.text)))
        return answers

    def _located(self, text: str, hits: list[Hit]) -> list[Hit]:
        located = self.ranker.located(text, self.pool, [hit.row for hit in hits]) if hits else None
        if located is None:
            return hits
        return [hit._replace(located=one) for hit, one in zip(hits, located, strict=True)]

    def examples(self, count: int) -> list[str]:
        """Return example queries: captions of clips that are spread over the pool, as many as it has."""
        captions = list(dict.fromkeys(clip.captions[0] for clip in self.clips if clip.captions))
        spread = [text for text in captions[:: max(1, len(captions) // (8 * count))] if len(text) <= MAX_EXAMPLE]
        unreadable = set(self.ranker.unreadable(spread))
        known = [text for text in spread if text not in unreadable]
        return known[:: max(1, len(known) // count)][:count]


def _query(text: str) -> Query:
    return Query(id=text, text=text, relevant=None)


def _below_common_folder(clips: Sequence[Clip]) -> list[str]:
    """The clips' paths, from the folder that holds all of them: the one that was named, where their names are paths in
    it."""
    paths = [str(Path(clip.path).absolute()) for clip in clips]
    depths = [len(Path(clip.file_name).parts) if clip.path.endswith(f"/{clip.file_name}") else 1 for clip in clips]
    folders = {path.rsplit(os.sep, depth)[0] or os.sep for path, depth in zip(paths, depths, strict=True)}
    top = os.path.commonpath(folders)
    return [path[len(top) :].lstrip(os.sep) for path in paths]
