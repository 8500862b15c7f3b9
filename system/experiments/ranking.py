"""Rank the entries of a run: write scores and the edition's files, and compute metrics.

An entry is ranked once results/ENTRY.json is there, with the settings that it depends on.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import read_json, write_json
from data_tools.manifest import Clip, Query, caption_queries
from submission.editions import get_edition
from submission.formats.csv_files import csv_of, write_csv
from submission.formats.score_matrix import ScoreMatrix, matrix_from_blocks, read_scores, write_scores
from submission.runs.entry import ranked_result
from submission.runs.record import BlindResult, Record, write_clips
from system.batches.loader import Taught
from system.experiments.blind import blind_checksum, blind_entry
from system.experiments.moments import rank_moments, require_rankable_moments
from system.experiments.summary import ceiling_of
from system.features.extract import Features
from system.models.retrieval import RetrievalModel
from system.ranking.embedding import require_known_words
from system.ranking.entries import ByOneModel, RankedSet, RankEntry, RankMoments, matrix_labels
from system.recipe import schema
from system.recipe.data import Data
from system.retriever import Retriever
from system.runs.checkpoints import load_checkpoint
from system.runs.folder import Run
from system.runs.open import Trained, model_facts, open_trained, untrained_origin
from system.runs.provenance import weight_checksums
from system.runs.trained_on import count_trained_clips
from system.training.teachers import teacher_embeddings

log = logging.getLogger(__name__)


@dataclass
class RunRanking:
    """The trained and the initial model of a run, its data, and its blind sets by rank entry."""

    recipe: schema.Recipe
    run: Run
    data: Data
    trained: RetrievalModel
    untrained: RetrievalModel
    blind: Mapping[str, RankedSet]
    chosen: dict[str, dict[str, float]] = field(default_factory=dict)  # see system.ranking.entries.Ranking
    of_untrained: dict[str, ScoreMatrix] = field(default_factory=dict)  # scores before training, by data source

    def retriever(self, stage: str | None, checkpoint: str | None, features: Features) -> Retriever:
        """Return the model at a checkpoint, or before training, for clips with these frames."""
        model, origin = self.untrained, untrained_origin(self.recipe)
        if stage is not None:
            model, origin = self.trained, load_checkpoint(self.trained, self.run.folder / stage, checkpoint or "last")
        facts = model_facts(self.run.folder, model, self.recipe, origin)
        return Retriever(Trained(model, self.recipe, facts, self.run.folder), features=features)

    def source(self, name: str) -> RankedSet:
        """Return the readable clips of a data source and their captions."""
        clips = self.data.readable_clips(name)
        return RankedSet(clips, caption_queries(clips), self.data.features)

    def earlier(self, name: str) -> ScoreMatrix:
        """Return the scores of an earlier entry."""
        return read_scores(self.run.file("scores", name))

    def other(self, folder: str, ranked: RankedSet) -> ScoreMatrix:
        """Return the scores by another run or an exported model."""
        banks = Path(self.recipe.banks)
        retriever = Retriever(open_trained(Path(folder), device=self.trained.device, banks=banks), banks / "models")
        return retriever.matrix(ranked.queries, retriever.open(ranked.clips, strict=True))

    def taught(self, teacher: str, clips: Sequence[Clip]) -> Taught:
        """Return a teacher's embeddings of clips and of their captions."""
        return teacher_embeddings(teacher, self.recipe, self.run, clips, self.data, self.trained.device)

    def before_training(self, source: str) -> ScoreMatrix:
        """Return the scores of a data source by the initial model, as a baseline."""
        if source not in self.of_untrained:
            log.info("ranking %s with the untrained model too, for comparison", source)
            ranked, retriever = self.source(source), self.retriever(None, None, self.data.features)
            self.of_untrained[source] = retriever.matrix(ranked.queries, retriever.open(ranked.clips))
        return self.of_untrained[source]


def identity(recipe: schema.Recipe, name: str) -> dict[str, Any]:
    """Return what the scores of a rank entry depend on besides training, as far as it is on this machine."""
    entries = {one: recipe.rank[one] for one in _chain(recipe, name)}
    found: dict[str, Any] = {f"rank.{one}": entry.model_dump(mode="json") for one, entry in entries.items()}
    for entry in entries.values():
        found |= {f"data.{source}": recipe.data[source].model_dump(mode="json") for source in entry.sources}
        found |= {folder: weight_checksums(Path(folder)) for folder in entry.other_models if Path(folder).exists()}
    if (blind := blind_entry(recipe, name)) and not blind.missing_files:
        found["blind set"] = blind_checksum(blind)
    return found


def _chain(recipe: schema.Recipe, name: str) -> list[str]:
    """Return a rank entry and all those that it combines."""
    return [name, *(one for other in recipe.rank[name].combined_entries for one in _chain(recipe, other))]


def is_ranked(recipe: schema.Recipe, run: Run, name: str) -> bool:
    """Return whether a rank entry's result is there and still holds; what is gone since then is not compared."""
    entry, path = recipe.rank[name], run.file("result", name)
    files = [path, run.file("scores", name)]
    if isinstance(entry, RankMoments):
        files = [path, run.file("windows", name), run.file("answers", name)]
    elif blind_entry(recipe, name) or entry.csv:
        files.append(run.file("csv", name))
    noted = read_json(path) if all(file.exists() for file in files) else None
    if not (isinstance(noted, dict) and noted.keys() >= {"identity", "result"}):
        return False
    return bool(noted["identity"] | identity(recipe, name) == noted["identity"])


def waits(recipe: schema.Recipe, name: str) -> bool:
    """Return whether files of an entry's blind set are missing."""
    entry = blind_entry(recipe, name)
    return entry is not None and bool(entry.missing_files)


def rank_entry(name: str, ranking: RunRanking) -> None:
    """Rank an entry, and write its files."""
    recipe, run, entry = ranking.recipe, ranking.run, ranking.recipe.rank[name]
    run.forget(name)
    noted, result = identity(recipe, name), _rank(name, entry, ranking)
    write_json(run.file("result", name), {"identity": noted, "result": result.document()})


def _rank(name: str, entry: RankEntry, ranking: RunRanking) -> Record:
    recipe, run = ranking.recipe, ranking.run
    if isinstance(entry, RankMoments):
        retriever = ranking.retriever(entry.stage, entry.checkpoint, ranking.data.features)
        return rank_moments(name, entry, ranking.data, retriever)
    if blind_entry(recipe, name):
        matrix, origin = _write_scores(name, entry, ranking.blind[name], ranking, has_csv=True)
        return BlindResult(
            queries=len(matrix),
            clips=len(matrix.clip_ids),
            checkpoint=origin,
            edition=get_edition(entry.edition).name,
        )
    source, ranked = recipe.ranked_source(name), recipe.ranked(name)
    matrix, origin = _write_scores(name, entry, ranking.source(source), ranking, entry.csv)
    is_trained = isinstance(ranked, ByOneModel) and ranked.stage is not None
    return ranked_result(
        matrix,
        get_edition(entry.edition),
        ranking.before_training(source) if is_trained else None,
        data=source,
        checkpoint=origin,
        ceiling=ceiling_of(recipe.data[source]),
        also_trained_on=count_trained_clips(run, source, ranking.data, entry.other_models),
    )


def _write_scores(
    name: str, entry: RankEntry, ranked: RankedSet, ranking: RunRanking, has_csv: bool
) -> tuple[ScoreMatrix, str]:
    """Score clips by an entry, and write the scores and the edition's CSV."""
    run, edition = ranking.run, get_edition(entry.edition)
    sizes = counted(len(ranked.queries), "caption", ","), counted(len(ranked.clips), "clip", ",")
    log.info("rank entry %s: ranking %s against %s", name, *sizes)
    texts = [query.text for query in ranked.queries] if isinstance(entry, ByOneModel) else []
    if unknown := ranking.trained.text.without_known_words(texts):
        log.warning(
            "rank entry %s: the model knows no word of %s, first %r; all clips have the same score for these, and are "
            "ordered by name; reword them", name, counted(len(unknown), "query"), unknown[0],
        )  # fmt: skip
    matrix, origin = entry.scores(ranked, ranking)
    matrix = replace(matrix, facts={**matrix.facts, "edition": edition.name})
    write_scores(run.file("scores", name), matrix)
    if has_csv:
        write_csv(matrix, run.file("csv", name), edition)
    if not blind_entry(ranking.recipe, name):
        write_clips(run.file("clips", name), ranked.clips)
    return matrix, origin


def require_rankable(
    recipe: schema.Recipe, data: Data, model: RetrievalModel, run: Run, blind: Mapping[str, RankedSet]
) -> None:
    """Find errors of the ranking before the training; warn of ranked recordings that are trained on."""
    for name, ranked in blind.items():
        _require_csv(ranked.clips, ranked.queries, recipe.rank[name])
    for name, entry in recipe.scored.items():
        source = recipe.ranked_source(name)
        clips = data.clips[source]
        if broken := [clip.id for clip in clips if clip.id in data.features.broken]:
            is_read = recipe.model.audio.reads_clips
            cure = f"; repair these clips, or remove them from {recipe.data[source].manifest}" if is_read else ""
            raise KitError(
                f"rank entry {name}: {counted(len(broken), 'clip')} of data source {source} cannot be read, first "
                f"{data.features.broken[broken[0]]}{cure}"
            )
        queries = caption_queries(clips)
        if isinstance(recipe.ranked(name), ByOneModel):
            require_known_words(model, queries)
        if entry.csv:
            _require_csv(clips, queries, entry)
    require_rankable_moments(recipe, data)
    for source in dict.fromkeys(map(recipe.ranked_source, recipe.scored)):
        if shared := count_trained_clips(run, source, data):
            log.warning(
                "training uses %s of data source %s, which is also ranked, so the metrics of this source are too high; "
                "remove these recordings from the training data", counted(shared, "recording"), source,
            )  # fmt: skip


def _require_csv(clips: Sequence[Clip], queries: Sequence[Query], entry: RankEntry) -> None:
    """Raise SubmissionError if the edition's CSV cannot hold these clips and queries."""
    labels = matrix_labels(clips, queries, {})
    csv_of(matrix_from_blocks(labels, [np.zeros(labels.shape, np.float32)]), get_edition(entry.edition))
