"""Queries with their relevant clips: captions, blind sets, annotations of 2025.

A submitted file identifies a query only by its text, so two queries with the same text are refused here. The official
2022 scorer would use only the last of them, without a message.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mode

from data_tools.errors import KitError
from data_tools.tables import caption_columns, read_table
from submission.formats.problems import Problem
from submission.formats.score_matrix import Labels

Relevant = Mapping[str, list[str] | None]  # relevant file names of each query, by its text; None if they are not known


def labels_of(relevant: Relevant, names: Iterable[str]) -> Labels:
    """Return queries and the pool that a submitted file must have; their ids are texts and names."""
    texts, pool = list(relevant), sorted(names)
    return Labels(texts, texts, pool, pool, list(relevant.values()))


def relevant_names(labels: Labels) -> Relevant:
    """Return the relevant file names of each query, by its text."""
    name_of = dict(zip(labels.clip_ids, labels.file_names, strict=True))
    names = (clips and [name_of[clip] for clip in clips] for clips in labels.relevant)
    return dict(zip(labels.query_texts, names, strict=True))


def read_captions(path: Path) -> Labels:
    """Read a captions file in Clotho's format.

    Every caption is a query, the file of its row is relevant. Raises KitError for a caption of several files: a
    CSV could not distinguish these queries. Clotho has 16, all in the development split; the official script scores the
    last file only.
    """
    rows = read_table(path, ["file_name", "caption_1"])
    columns = caption_columns(path, rows[0][1])
    relevant: dict[str, list[str] | None] = {}
    pool: set[str] = set()
    for line, row in rows:
        name, texts = row["file_name"], [row[column] for column in columns]
        if name in pool or not all(text.strip() for text in (name, *texts)):
            raise KitError(f"{path}: {Problem(line, 'a cell is empty, or a file name is repeated', name)}")
        pool.add(name)
        for text in texts:
            if relevant.setdefault(text, [name]) != [name]:
                problem = Problem(line, "another file has the same caption", text)
                raise KitError(f"{path}: {problem}; score the score matrix")
    return labels_of(relevant, pool)


def read_blind_set(queries: Path, audio: Path) -> Labels:
    """Read a blind set.

    The queries are the column `caption` of a CSV, the pool is a folder of audio files.

    Names are those on disk: three clips of 2022 have other names in retrieval_audio_metadata.csv.
    """
    from data_tools.names import audio_tree

    names, _ = audio_tree(audio)
    if not names:
        raise KitError(f"{audio}: no folder with audio files; correct the path")
    relevant: dict[str, list[str] | None] = {}
    for line, row in read_table(queries, ["caption"]):
        if (text := row["caption"]) in relevant or not text.strip():
            raise KitError(f"{queries}: {Problem(line, 'the query is empty or repeated', text)}")
        relevant[text] = None
    return labels_of(relevant, names)


def read_annotations(path: Path, labels: Labels) -> Relevant:
    """Read the organisers' annotations of 2025.

    They name several relevant files for some of the queries.

    Source: DCASE 2025 baseline, resources/metadata_eval.csv.
    """
    require_distinct(labels)
    queries, pool = set(labels.query_texts), set(labels.file_names)
    relevant: dict[str, list[str] | None] = {}
    for line, row in read_table(path, ["query", "audio_filenames"]):
        text, listed = row["query"], row["audio_filenames"]
        if text not in queries or text in relevant:
            raise KitError(f"{path}: {Problem(line, 'unknown or repeated query', text, queries)}")
        try:
            names = set(ast.literal_eval(listed))
        except (ValueError, SyntaxError, TypeError):
            names = set()
        if not names or not names <= pool:
            raise KitError(f"{path}: {Problem(line, 'no list of known file names', listed)}")
        relevant[text] = sorted(names)
    return relevant


def require_distinct(labels: Labels) -> None:
    """Raise KitError for equal texts or equal file names."""
    require_distinct_names(labels)
    _require_different(labels.query_texts)


def require_distinct_names(labels: Labels) -> None:
    """Raise KitError for equal file names."""
    _require_different(labels.file_names)


def _require_different(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise KitError(f"two queries or clips have the same name {mode(names)!r}; a CSV needs one for each")
