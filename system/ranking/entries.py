"""Settings of the rank entries, and how each scores."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
from pydantic import Field

from data_tools.manifest import Clip, Query
from submission.formats.score_matrix import Labels, ScoreMatrix, matrix_from_blocks
from submission.metrics.blend import blend
from system.batches.items import caption_key
from system.kinds import OfKind
from system.moments.windows import By, Decoding
from system.ranking.hubs import Kind, candidates_of, correct_for_hubs, precision_by_correction

if TYPE_CHECKING:
    from system.features.extract import Features

# Q queries, C clips

# recall_sum: R@1 + R@5 + R@10 of captions that look for their clip, in [0, 3]
# mAP@16: the main figure of 2025
Metric = Literal["loss", "m1", "m2", "mAP@10", "mAP@16", "recall_sum", "R1@0.5", "R1@0.7", "mAP"]
Checkpoint = Literal["last", Metric]  # the last, or the best by a monitored metric
EditionKey = int | Literal["custom"]


FACTS, VALIDATED, CHECKPOINT = "hub correction", "validation mAP@10", "checkpoint"  # keys of a score matrix's facts


class RankedSet(NamedTuple):
    """Clips and queries that a rank entry ranks."""

    clips: Sequence[Clip]
    queries: Sequence[Query]
    features: "Features"  # of the clips


class RankEntry(OfKind):
    """Base class of the kinds of rank entries."""

    if TYPE_CHECKING:  # keys of most kinds
        data: str
        edition: EditionKey
        csv: bool

    @property
    def combined_entries(self) -> list[str]:
        """Names of the earlier entries whose scores are used."""
        return []

    @property
    def pool(self) -> tuple[str, str]:
        """Data source and "", or a blind set's two files."""
        return self.data, ""

    @property
    def sources(self) -> list[str]:
        """Names of the data sources that the scores depend on."""
        named = [getattr(self, key, None) for key in ("data", "fit", "validation")]
        return [name for name in (*named, *getattr(self, "bank", ())) if name]

    @property
    def other_models(self) -> list[str]:
        """Folders of other models whose scores are used."""
        return []

    @abstractmethod
    def scores(self, ranked: RankedSet, ranking: Any) -> ScoreMatrix:
        """Score all queries against all clips.

        The fact `checkpoint` says where the scores are from.

        Args:
            ranking: What the run gives its entries, a RunRanking (experiments/ranking.py).
        """


class ByOneModel(RankEntry):
    """Base of rank kinds that use one model."""

    stage: str | None  # stage of the checkpoint; null: the published weights
    checkpoint: Checkpoint | None  # last, or best by this metric of the stage; null if stage is null

    def scores(self, ranked: RankedSet, ranking: Any) -> ScoreMatrix:
        """Score by the model at the entry's checkpoint."""
        retriever = ranking.retriever(self.stage, self.checkpoint, ranked.features)
        return retriever.matrix(ranked.queries, retriever.open(ranked.clips))


class RankByCheckpoint(ByOneModel):
    """Rank a source's clips for its captions by one checkpoint.

    It writes a score matrix, its metrics, and the challenge's submission file. A zero-shot system sets `stage: null`
    and needs no stage.
    """

    kind: Literal["checkpoint"]
    data: str  # source whose captions are the queries for its clips
    edition: EditionKey  # challenge year; it decides the figures and the file
    csv: bool  # write the edition's CSV, which names queries by text: clips must not share captions (AudioCaps)


class RankBlind(ByOneModel):
    """Rank a blind set, whose relevant clips are secret.

    It writes a score matrix and the edition's submission file, but no metrics. While files of the blind set are
    missing, the entry is skipped. Once they exist, the same command ranks the entry, without training again.
    """

    kind: Literal["blind"]
    audio: str  # folder of the clips, or a manifest (.jsonl)
    queries: str  # table with a column caption (.csv)
    edition: EditionKey  # challenge year; it decides the file

    @property
    def pool(self) -> tuple[str, str]:
        """The files of the blind set."""
        return self.audio, self.queries

    @property
    def missing_files(self) -> list[str]:
        """Files or folders of the blind set that are missing."""
        return [name for name in self.pool if not Path(name).exists()]


class RankByMean(RankEntry):
    """Rank by the mean of several entries' and models' scores.

    The entries rank the same data source or blind set; other models rank the same clips and queries.
    """

    kind: Literal["mean"]
    of: Annotated[list[str], Field(min_length=2)]  # earlier entries; also folders of runs or models, as runs/RUN
    edition: EditionKey  # challenge year, or custom
    csv: bool  # write the edition's CSV

    @property
    def combined_entries(self) -> list[str]:
        """Names of the earlier entries whose scores are averaged."""
        return [name for name in self.of if "/" not in name]

    @property
    def other_models(self) -> list[str]:
        """Folders of the models whose scores are averaged."""
        return [name for name in self.of if "/" in name]

    def scores(self, ranked: RankedSet, ranking: Any) -> ScoreMatrix:
        """Average the scores of entries and models."""
        parts = {name: ranking.earlier(name) for name in self.combined_entries}
        parts |= {folder: ranking.other(folder, ranked) for folder in self.other_models}
        facts = {"of": {name: part.facts for name, part in parts.items()}, CHECKPOINT: f"mean of {', '.join(self.of)}"}
        return replace(blend(parts), facts=facts)


class RankByTeachers(RankEntry):
    """Rank by the mean of several teachers' cosines.

    This is the target of a stage that is distilled from them.
    """

    kind: Literal["teachers"]
    data: str  # source whose captions are the queries for its clips
    of: Annotated[list[str], Field(min_length=1)]  # names of teachers
    edition: EditionKey  # challenge year; it decides the figures and the file
    csv: bool  # write the edition's CSV

    def scores(self, ranked: RankedSet, ranking: Any) -> ScoreMatrix:
        """Average the teachers' cosines."""
        captions = [caption_key(clip, number) for clip in ranked.clips for number in range(len(clip.captions))]
        clips = [ranked.features.keys[clip.id] for clip in ranked.clips]
        taught = [ranking.taught(name, ranked.clips).cosines(clips, captions).T for name in self.of]
        values: np.ndarray = np.stack(taught).mean(0)
        facts = {"recipe": ranking.recipe.name, CHECKPOINT: f"mean of the cosines of {', '.join(self.of)}"}
        return matrix_from_blocks(matrix_labels(ranked.clips, ranked.queries, facts), [values])


class RankHubCorrected(RankEntry):
    """Correct the scores of an earlier entry for hubs.

    Hubs are clips that have high scores for many queries. The captions of training sources show which clips are hubs.
    Of all compared corrections, the one with the highest mAP@10 on a validation source is used; `none` does not change
    the scores.

    Sources: inverted_softmax: Smith et al. (2017); qb_norm: Bogolin et al. (2022); csls: Conneau et al. (2018). The
    equations are in system/ranking/hubs.py.
    """

    kind: Literal["hub_corrected"]
    of: str  # an earlier entry by one model, of kind checkpoint or blind
    bank: Annotated[list[str], Field(min_length=1)]  # training sources whose captions show the hubs
    validation: str  # source that chooses the correction
    kinds: list[Kind] = Field(list(get_args(Kind)), min_length=1)  # corrections to choose from
    edition: EditionKey  # challenge year; it decides the figures and the file
    csv: bool  # write the edition's CSV

    @property
    def combined_entries(self) -> list[str]:
        """List with the entry whose scores are corrected."""
        return [self.of]

    def scores(self, ranked: RankedSet, ranking: Any) -> ScoreMatrix:
        """Correct the scores as is best on the validation source."""
        inner: Any = ranking.recipe.rank[self.of]
        bank = list(dict.fromkeys(query.text for source in self.bank for query in ranking.source(source).queries))

        def with_bank(ranked: RankedSet) -> tuple[ScoreMatrix, np.ndarray]:
            """Score queries and the bank by the earlier entry's model."""
            retriever = ranking.retriever(inner.stage, inner.checkpoint, ranked.features)
            pool = retriever.open(ranked.clips)
            return retriever.matrix(ranked.queries, pool), retriever.scores(bank, pool)

        candidates = candidates_of(self.kinds)
        matrix, of_bank = with_bank(ranking.source(self.validation))
        relevant = matrix.relevant_columns()
        table = precision_by_correction(matrix.values, of_bank, relevant, matrix.file_names, candidates)
        best = max(candidates, key=lambda one: table[str(one)])  # of equal values the first
        matrix, of_bank = with_bank(ranked)
        noted = {"of": self.of, "correction": str(best), "bank": self.bank, "bank queries": len(bank)}
        facts = matrix.facts | {FACTS: noted | {VALIDATED: table}}
        facts[CHECKPOINT] += f", hub correction {best}"
        return replace(matrix, values=correct_for_hubs(matrix.values, of_bank, best), facts=facts)


class RankMoments(ByOneModel):
    """Find windows for the texts of a source's moments.

    It writes the edition's file, with and without scores, and its metrics.
    """

    kind: Literal["moments"]
    data: str  # source whose moments are searched
    windows: By  # windows of most probable overlap, or frames above thresholds
    decoding: Decoding = Field(Decoding())  # selection of windows
    fit: str | None = None  # source to whose moments scale, offset and transitions are fitted; null: as trained
    edition: int  # challenge year; it decides the figures and the file


def matrix_labels(clips: Sequence[Clip], queries: Sequence[Query], facts: Mapping[str, Any]) -> Labels:
    """Return the labels of a score matrix.

    Queries are its rows, and clips its columns.
    """
    return Labels(
        query_ids=[query.id for query in queries],
        query_texts=[query.text for query in queries],
        clip_ids=[clip.id for clip in clips],
        file_names=[clip.file_name for clip in clips],
        relevant=[query.relevant for query in queries],
        facts=dict(facts),
    )
