"""Rank entries that score clips.

Rank clips for queries: write score matrices and the edition's submission file, a CSV, and compute metrics if the
relevant clips are known.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from data_tools.cli import counted
from data_tools.manifest import Clip, Query, caption_queries
from submission.editions import get_edition
from submission.formats.csv_files import write_csv
from submission.formats.score_matrix import ScoreMatrix, write_scores
from submission.runs.files import write_clips
from submission.runs.record import BlindResult, RankedResult
from system.experiments.blind import BlindSet
from system.experiments.summary import ceiling_of
from system.ranking.base import Pool, RankEntry, Ranker
from system.ranking.checkpoint import ByOneModel
from system.ranking.listing import Listed
from system.ranking.mean import StoredScores
from system.recipe import schema
from system.runs.folder import Run

if TYPE_CHECKING:
    from system.batches.loader import Taught
    from system.features.extract import Features
    from system.models.retrieval import RetrievalModel
    from system.ranking.model import ModelRanker
    from system.recipe.data import Data

log = logging.getLogger(__name__)


@dataclass
class RunModels:
    """Models of a run whose stages are trained.

    trained: The run's model with trained weights. untrained: The run's model before its training, with published
    weights. features: Frames of the ranked clips. chosen: Validation results of the compared corrections, for each rank
    entry that corrects the scores of hubs (clips with high scores for many queries); kept so that they are computed
    once.
    """

    recipe: schema.Recipe
    run: Run
    data: "Data"
    trained: "RetrievalModel"
    untrained: "RetrievalModel"
    features: "Features"
    chosen: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def recipe_name(self) -> str:
        """Name of the run's recipe."""
        return self.recipe.name

    @property
    def content_keys(self) -> Mapping[str, str]:
        """Dict from clip id to the checksum of the clip's audio."""
        return self.features.keys

    def model_ranker(self, stage: str | None, checkpoint: str | None) -> "ModelRanker":
        """Return the ranker of the model at a stage's checkpoint; without a stage, of the untrained model."""
        from system.ranking.model import KnownFeatures, ModelRanker
        from system.runs.checkpoints import load_checkpoint
        from system.runs.open import model_facts, untrained_origin

        model, origin = self.untrained, untrained_origin(self.recipe)
        if stage is not None:
            model, origin = self.trained, load_checkpoint(self.trained, self.run.folder / stage, checkpoint or "last")
        facts = model_facts(self.run, model, self.recipe, origin).document()
        return ModelRanker(model, KnownFeatures(self.features), facts, origin, score=self.recipe.model.score)

    def entry_ranker(self, name: str) -> Ranker:
        """Return a ranker that reads the stored scores of the rank entry `name`, which was ranked earlier."""
        return StoredScores(self.run.scores_file(name))

    def live_ranker(self, name: str, source: str | None = None) -> Ranker:
        """Return a ranker of the rank entry `name`, for any queries.

        source: Data source whose clips are ranked. None: the data source of the rank entry that is computed now. This
        may be another entry than `name`, and use the scores of `name`.
        """
        models = self if source is None else replace(self, features=self.data.features)
        return self.recipe.rank[name].ranker(models)

    def caption_queries(self, source: str) -> Sequence[Query]:
        """Return the captions of a data source's readable clips as queries."""
        return caption_queries(self.ranked_clips(source))

    def ranked_clips(self, source: str) -> Sequence[Clip]:
        """Return the readable clips of a data source."""
        return self.data.readable_clips(source)

    def earlier_facts(self, entry: RankEntry) -> Mapping[str, Any]:
        """Return an empty dict, since only a finished run has metadata of an earlier ranking."""
        return {}

    def teacher_embeddings(self, teacher: str, clips: Sequence[Clip]) -> "Taught":
        """Return the embeddings of clips and of their captions by a teacher, a model that others learn from."""
        from system.training.teachers import teacher_embeddings

        return teacher_embeddings(teacher, self.recipe, self.run, clips, self.data, self.trained.device)


def rank_sources(models: RunModels, kept: Mapping[str, RankedResult]) -> dict[str, RankedResult]:
    """Rank clips for all rank entries with metrics, and return a dict from entry to result.

    kept: Earlier results, which are returned too; their entries are not ranked again.
    A result compares the metrics with two baselines, chance and the untrained model.
    """
    recipe, data = models.recipe, models.data
    new = [name for name in recipe.scored if name not in kept]
    untrained = _rank_by_untrained(models, [name for name in new if _is_trained(recipe.ranked(name))])
    ranked = dict(kept)
    for name in new:
        source, entry = recipe.ranked_source(name), recipe.rank[name]
        clips = data.clips[source]
        found = _rank_entry(name, models, clips, caption_queries(clips), has_csv=entry.csv)
        if found is None:
            continue
        matrix, pool, origin = found
        write_clips(models.run.clips_file(name), data.readable_clips(source), pool.norms)
        before = untrained.get(source) if _is_trained(recipe.ranked(name)) else None
        ranked[name] = _compute_result(name, models, matrix, origin, before)
    return {name: ranked[name] for name in recipe.scored if name in ranked}


def rank_blind_sets(models: RunModels, sets: Mapping[str, BlindSet]) -> dict[str, BlindResult]:
    """Rank blind sets and write their submissions. Returns: Dict from rank entry to its result.

    sets: Dict from rank entry to its blind set.
    """
    results = {}
    for name, blind in sets.items():
        entry, run = models.recipe.rank[name], models.run
        found = _rank_entry(name, replace(models, features=blind.features), blind.clips, blind.queries, has_csv=True)
        matrix, _, origin = found
        results[name] = BlindResult(
            queries=len(matrix),
            clips=len(matrix.clip_ids),
            checkpoint=origin,
            edition=get_edition(entry.edition).name,
            scores=str(run.scores_file(name)),
            csv=str(run.csv_file(name)),
            sha256=blind.sha256,
        )
    return results


def _rank_entry(
    name: str, models: RunModels, clips: Sequence[Clip], queries: Sequence[Query], has_csv: bool
) -> tuple[ScoreMatrix, Pool, str]:
    """Rank clips by a rank entry; write its scores and, with `has_csv`, its submission file.

    Returns: The score matrix, the pool of ranked clips, and the description of the checkpoint.
    """
    entry, run = models.recipe.rank[name], models.run
    log.info("rank entry %s: ranking %s", name, describe_size(queries, clips))
    ranker = entry.ranker(models)
    if unknown := ranker.without_known_words([query.text for query in queries]):
        log.warning(
            "rank entry %s: the model knows no word of %d queries, first %r; for these queries, all clips have the "
            "same score and are ordered by name; reword the queries", name, len(unknown), unknown[0],
        )  # fmt: skip
    pool = ranker.open(Listed([clip for clip in clips if clip.id in models.content_keys]))
    matrix = ranker.matrix(queries, pool)
    edition = get_edition(entry.edition)
    matrix = replace(matrix, facts={**matrix.facts, "edition": edition.name})
    for path in (run.scores_file(name), run.csv_file(name)):
        path.parent.mkdir(exist_ok=True)
    write_scores(run.scores_file(name), matrix)
    if has_csv:
        write_csv(matrix, run.csv_file(name), edition)
    return matrix, pool, ranker.origin


def _is_trained(entry: RankEntry) -> bool:
    """Return whether a rank entry uses a trained stage, so that it can be compared with the untrained model."""
    return isinstance(entry, ByOneModel) and entry.stage is not None


def _rank_by_untrained(models: RunModels, names: Sequence[str]) -> dict[str, ScoreMatrix]:
    """Return {source: the untrained model's scores} for the rank entries `names`."""
    matrices = {}
    ranker = models.model_ranker(None, None)
    for source in dict.fromkeys(map(models.recipe.ranked_source, names)):
        clips = models.data.clips[source]
        queries = caption_queries(clips)
        log.info("ranking %s with the untrained model too, for comparison: %s", source, describe_size(queries, clips))
        matrices[source] = ranker.matrix(queries, ranker.open(Listed(clips)))
    return matrices


def _compute_result(
    name: str, models: RunModels, matrix: ScoreMatrix, origin: str, untrained: ScoreMatrix | None
) -> RankedResult:
    """Return the metrics and other results of the rank entry `name`, whose scores are `matrix`.

    origin: Description of the checkpoint that computed the scores. untrained: Score matrix of the untrained model for
    the same clips and queries, for comparison; None: no comparison.
    """
    from submission.runs.results import ranked_result

    recipe, run, source = models.recipe, models.run, models.recipe.ranked_source(name)
    entry = recipe.rank[name]
    return ranked_result(
        matrix,
        get_edition(entry.edition),
        untrained,
        data=source,
        checkpoint=origin,
        ceiling=ceiling_of(recipe.data[source]),
        also_trained_on=models.data.count_shared_clips(recipe.trained_on, [source]),
        scores=str(run.scores_file(name)),
        csv=str(run.csv_file(name)) if entry.csv else None,
    )


def describe_size(queries: Sequence[Query], clips: Sequence[Clip]) -> str:
    """Return the numbers of captions and clips of a data source as text."""
    return f"{counted(len(queries), 'caption', ',')} against {counted(len(clips), 'clip', ',')}"
