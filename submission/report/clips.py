"""Sections of a run that ranks clips.

Ranks, lengths of captions, and queries to listen to.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np

from submission.metrics.summary import Summary
from submission.ordering import ranked_columns
from submission.report.audio import AudioStore
from submission.report.figures import draw_bars
from submission.report.parts import Drawing, Listened, Player, Section, Table
from submission.runs.entry import Entry
from submission.runs.files import read_clips

RANKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # last ranks of the bins
WORDS = (1, 5, 8, 11, 14, 17, 20)  # starts of bins of caption lengths; Clotho's captions have 8 to 20 words
WORST = 10  # queries that are shown with players
TOP = 3  # best clips shown per query
LONGEST = 10.0  # embedded seconds of a clip


def ranks_section(summary: Summary, path: Path) -> Section:
    """Return the distribution of the first relevant ranks."""
    first = summary.queries.ranks.min(axis=1)
    ends = [*(end for end in RANKS if end < summary.queries.n_pool), summary.queries.n_pool]
    starts = [1, *(end + 1 for end in ends[:-1])]
    labels = [str(low) if low == high else f"{low}–{high}" for low, high in zip(starts, ends, strict=True)]
    counts = [int(((first >= low) & (first <= high)).sum()) for low, high in zip(starts, ends, strict=True)]
    draw_bars(path, labels, counts, "rank of the first relevant clip", "queries")
    text = f"Of {len(first):,} queries, {counts[0]:,} have a relevant clip at rank 1."
    return Section(
        "ranks", "Ranks", paragraphs=[text], drawings=[Drawing(path, "Rank of the first relevant clip", text)]
    )


def lengths_section(summary: Summary, path: Path) -> Section:
    """Return the recall by the length of the caption."""
    recalls = [name for name in summary.per_query if name.startswith("R@")]
    metric = max(recalls, key=lambda name: int(name[2:]))
    words = np.array([len(text.split()) for text in summary.queries.texts])
    rows = []
    for start, end in pairwise([*WORDS, np.inf]):
        if (own := (words >= start) & (words < end)).any():
            rows.append((f"from {start}", int(own.sum()), float(summary.per_query[metric][own].mean())))
    draw_bars(path, [label for label, _, _ in rows], [mean for _, _, mean in rows], "words of the caption", metric)
    title = f"{metric} by length of the caption"
    table = Table(title, ("words", "queries", metric), [[label, str(n), f"{mean:.4f}"] for label, n, mean in rows])
    return Section("lengths", "Lengths of captions", drawings=[Drawing(path, title, title)], tables=[table])


def listening_section(run: Entry, summary: Summary, store: AudioStore) -> Section:
    """Return the worst queries with players of clips."""
    matrix = run.matrix
    first = summary.queries.ranks.min(axis=1)
    table = read_clips(run.folder / f"scores/{run.name}.clips.csv", matrix.clip_ids)
    relevant = matrix.relevant_columns()
    queries = []
    for row in np.argsort(-first, kind="stable")[:WORST]:
        order = ranked_columns(matrix.values[[row]], matrix.file_names, len(matrix.clip_ids))[0].tolist()
        ranks = [rank for rank, column in enumerate(order, 1) if rank <= TOP or column in relevant[row]][: 2 * TOP]
        players = []
        for rank in ranks:
            column = order[rank - 1]
            clip, score = table.iloc[column], float(matrix.values[row, column])
            audio, why = store.add(Path(clip["path"]))
            name, is_right = matrix.file_names[column], column in relevant[row]
            players.append(Player(name, rank, score, float(clip["seconds"]), is_right, audio, why))
        queries.append(Listened(matrix.query_texts[row], int(first[row]), players))
    text = f"The {len(queries)} queries whose first relevant clip is ranked last; the first {LONGEST:g} s of clips."
    return Section("listening", "Listening", paragraphs=[text], queries=queries)


def ties_note(run: Entry) -> str:
    """Return a sentence on ties with relevant clips."""
    tied = 0
    for scores, columns in zip(run.matrix.values, run.matrix.relevant_columns(), strict=True):
        tied += bool((np.delete(scores, columns) == scores[columns].max()).any())
    return f"For {tied:,} of {len(run.matrix):,} queries, a clip that is not relevant has the score of a relevant one."
