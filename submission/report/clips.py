"""What the page of a run that ranks clips shows."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from submission.metrics.summary import Summary
from submission.ordering import ranked_columns
from submission.report.audio import AudioStore
from submission.report.figures import draw_bars
from submission.runs.entry import Entry
from submission.runs.record import read_clips

RANKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # last ranks of the bins
WORDS = (1, 5, 8, 11, 14, 17, 20)  # starts of bins of caption lengths; Clotho's captions have 8 to 20 words
WORST = 10  # queries that are shown with players
TOP = 3  # best clips shown per query
LONGEST = 10.0  # embedded seconds of a clip


def content(run: Entry, store: AudioStore) -> dict[str, Any]:
    """Return what page.html shows of a run that ranks clips."""
    summary = run.summary
    first = summary.queries.ranks.min(axis=1)
    metric = [name for name in summary.per_query if name.startswith("R@")][-1]
    lengths = list(recalls_by_length(summary, metric))
    return {
        "n_first": int((first == 1).sum()),
        "ranks_figure": draw_ranks(first, summary.queries.n_pool),
        "recall": metric,
        "lengths": lengths,
        "lengths_figure": draw_bars([one[0] for one in lengths], [one[2] for one in lengths], "words", metric),
        "queries": list(worst_queries(run, first, store)),
        "longest": store.seconds,
        "ties": count_ties(run),
    }


def draw_ranks(first: np.ndarray, n_pool: int) -> bytes:
    """Draw the distribution of the first relevant ranks, as SVG."""
    ends = [0, *(end for end in RANKS if end < n_pool), n_pool]
    labels = [str(end) if end - before == 1 else f"{before + 1}–{end}" for before, end in pairwise(ends)]
    counts, _ = np.histogram(first, [end + 0.5 for end in ends])
    return draw_bars(labels, counts.tolist(), "rank of the first relevant clip", "queries")


def recalls_by_length(summary: Summary, metric: str) -> Iterator[tuple[str, int, float]]:
    """Yield a range of caption lengths, its queries, and their recall."""
    words = np.array([len(text.split()) for text in summary.queries.texts])
    for start, end in pairwise([*WORDS, np.inf]):
        if (own := (words >= start) & (words < end)).any():
            yield f"from {start}", int(own.sum()), float(summary.per_query[metric][own].mean())


def worst_queries(run: Entry, first: np.ndarray, store: AudioStore) -> Iterator[dict[str, Any]]:
    """Yield the queries whose first relevant clip is ranked last, with players.

    Args:
        first: (Q,) ranks of the first relevant clips.
    """
    matrix, relevant = run.matrix, run.matrix.relevant_columns()
    clips = read_clips(run.folder / f"scores/{run.name}.clips.csv", matrix.clip_ids)
    for row in np.argsort(-first, kind="stable")[:WORST]:
        players: list[dict[str, Any]] = []
        (order,) = ranked_columns(matrix.values[[row]], matrix.file_names, len(clips)).tolist()
        for rank, column in enumerate(order, 1):
            if (rank > TOP and column not in relevant[row]) or len(players) == 2 * TOP:
                continue
            audio, why = store.add(Path(clips[column]["path"]))
            players.append(
                {
                    "name": matrix.file_names[column],
                    "rank": rank,
                    "score": matrix.values[row, column],
                    "seconds": clips[column]["seconds"],
                    "is_right": column in relevant[row],
                    "audio": audio,
                    "why": why,
                }
            )
        yield {"text": matrix.query_texts[row], "rank": first[row], "clips": players}


def count_ties(run: Entry) -> int:
    """Return the number of queries where another clip has the score of a relevant one."""
    rows = zip(run.matrix.values, run.matrix.relevant_columns(), strict=True)
    return sum(bool((np.delete(scores, columns) == scores[columns].max()).any()) for scores, columns in rows)
