"""Rank without hubs.

Ranking by an earlier entry, whose scores are corrected for hubs. Never imports torch.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from data_tools.manifest import Query
from data_tools.settings import Positive
from submission.metrics.retrieval import average_precision
from submission.ordering import relevant_ranks
from system.ranking.base import Models, Pool, RankEntry, Ranker, require_clips_and_queries
from system.ranking.hubs import Correction, Hubs, Kind, correct_scores, measure_hubs
from system.ranking.listing import Listed

if TYPE_CHECKING:
    from system.ranking.windows import Located

FACTS, VALIDATED = "hub correction", "validation mAP@10"  # keys of a score matrix's facts
KINDS: tuple[Kind, ...] = ("none", "inverted_softmax", "qb_norm", "csls")


class RankHubCorrected(RankEntry):
    """Correct the scores of an earlier entry for hubs: clips that have high scores for many queries. The captions of
    training sources show which clips are hubs. Of all compared corrections, the one with the highest mAP@10 on a
    validation source is used; `none` does not change the scores.

    Sources: inverted_softmax: Smith et al. (2017); qb_norm: Bogolin et al. (2022); csls: Conneau et al. (2018). The
    equations are in system/ranking/hubs.py.
    """

    kind: Literal["hub_corrected"]
    of: str  # an earlier entry by one model, of kind checkpoint or blind
    bank: Annotated[list[str], Field(min_length=1)]  # training sources whose captions show the hubs
    validation: str  # source that chooses the correction
    kinds: list[Kind] = Field(list(KINDS), min_length=1)  # corrections to choose from
    betas: list[Annotated[float, Field(gt=0)]] = Field(
        [5.0, 10.0, 20.0, 40.0], min_length=1
    )  # of inverted_softmax and qb_norm
    neighbours: list[Positive] = Field([5, 10, 20], min_length=1)  # number of nearest queries and clips of csls
    edition: int | Literal["custom"]  # challenge year; it decides the figures and the file
    csv: bool  # write the edition's CSV

    @property
    def combined_entries(self) -> list[str]:
        """List with one name: the rank entry whose scores are corrected."""
        return [self.of]

    @property
    def other_sources(self) -> list[str]:
        """Names of the data sources that the scores depend on, besides the ranked data source."""
        return [*self.bank, self.validation]

    @property
    def how_scored(self) -> str:
        """Text for the plan: how the scores are computed."""
        bank = ", ".join(self.bank)
        return f"ranked by {self.of}, corrected for hubs by captions of {bank}; settings chosen on {self.validation}"

    def candidates(self) -> list[Correction]:
        """Return the corrections to choose from. `none` is first, so that it is chosen if no correction is better."""
        strengths: dict[Kind, Sequence[float]] = {
            "none": [0.0],
            "inverted_softmax": self.betas,
            "qb_norm": self.betas,
            "csls": self.neighbours,
        }
        return [Correction(kind, float(one)) for kind in KINDS if kind in self.kinds for one in strengths[kind]]

    def ranker(self, models: Models) -> Ranker:
        """Return the ranker that corrects the earlier entry's scores, with the best correction on validation data."""
        texts = list(dict.fromkeys(query.text for source in self.bank for query in models.caption_queries(source)))
        queries = [Query(id=str(number), text=text, relevant=None) for number, text in enumerate(texts)]
        candidates = {str(one): one for one in self.candidates()}
        table = models.earlier_facts(self).get(FACTS, {}).get(VALIDATED)
        if table is None or table.keys() != candidates.keys():
            key = json.dumps([dict(models.live_ranker(self.of).facts), self.bank, self.validation, list(candidates)])
            if key not in models.chosen:  # other entries with the same checkpoint and correction have the same table
                models.chosen[key] = self._validation_table(models, queries)
            table = models.chosen[key]
        chosen = max(candidates, key=table.__getitem__)  # of equal values the first
        facts = {"of": self.of, "correction": chosen, "bank": self.bank, "bank queries": len(texts), VALIDATED: table}
        return HubCorrectedRanker(models.live_ranker(self.of), queries, candidates[chosen], facts)

    def _validation_table(self, models: Models, reference: Sequence[Query]) -> dict[str, float]:
        """Return a dict from each correction to the mAP@10 of the validation scores after this correction.

        reference: Queries that show which clips are hubs.
        """
        queries, inner = models.caption_queries(self.validation), models.live_ranker(self.of, self.validation)
        pool = inner.open(Listed(models.ranked_clips(self.validation)))
        require_clips_and_queries(queries, pool)
        scores = np.concatenate(list(inner.scores(queries, pool)))
        of_reference = list(inner.scores(reference, pool))
        column = {clip.id: number for number, clip in enumerate(pool.clips)}
        relevant = [[column[one] for one in query.relevant or [] if one in column] for query in queries]
        names = [clip.file_name for clip in pool.clips]
        found: dict[str, float] = {}
        hubs: dict[tuple[bool, float], Hubs] = {}  # inverted_softmax and qb_norm of one strength use the same
        for one in self.candidates():
            key = one.kind == "csls", one.strength
            if one.kind != "none" and key not in hubs:
                hubs[key] = measure_hubs(of_reference, one)
            (values,) = correct_scores([scores], one, hubs.get(key))
            ranks = relevant_ranks(values, relevant, names)
            found[str(one)] = round(float(average_precision(ranks, [len(row) for row in relevant]).mean()), 6)
        return found


class HubCorrectedRanker(Ranker):
    """Corrects the scores of another ranker for hubs."""

    def __init__(
        self, inner: Ranker, reference: Sequence[Query], correction: Correction, facts: Mapping[str, Any]
    ) -> None:
        """Create the ranker. inner: Ranker to correct.

        reference: Queries that show which clips are hubs. facts: Metadata that are stored with the scores.
        """
        self.inner, self.reference, self.correction = inner, reference, correction
        self.facts = {**inner.facts, FACTS: dict(facts)}
        self.origin = f"{inner.origin}, hub correction {correction}"
        self._hubs: tuple[Pool, Hubs | None] | None = None  # of the pool that was ranked last

    @property
    def meanings(self) -> dict[str, str]:
        """Dict from each kind of number on the search page, such as `score`, to its explanation."""
        score = f"{self.inner.meanings['score']}, corrected for clips that are near to many captions"
        return {**self.inner.meanings, "score": score}

    def open(self, listed: Listed, strict: bool = False) -> Pool:
        """Return a pool of readable clips, and measure its hubs. strict: A clip that cannot be read is an error."""
        pool = self.inner.open(listed, strict)
        self._hubs_of(pool)
        return pool

    def _hubs_of(self, pool: Pool) -> Hubs | None:
        """Return how much each clip of a pool is a hub (near to too many queries); None without a correction."""
        if self.correction.kind == "none":
            return None
        if self._hubs is None or self._hubs[0] is not pool:
            self._hubs = pool, measure_hubs(self.inner.scores(self.reference, pool), self.correction)
        return self._hubs[1]

    def scores(self, queries: Sequence[Query], pool: Pool) -> Iterator[np.ndarray]:
        """Yield the corrected score matrix of all queries and clips, in blocks of rows."""
        return correct_scores(self.inner.scores(queries, pool), self.correction, self._hubs_of(pool))

    def without_known_words(self, texts: Sequence[str]) -> list[str]:
        """Return the items of `texts` without any word that the ranker knows."""
        return self.inner.without_known_words(texts)

    def unknown_words(self, text: str) -> list[str]:
        """Return the words of a text that the ranker does not know."""
        return self.inner.unknown_words(text)

    def find_times(self, text: str, pool: Pool, rows: Sequence[int]) -> "list[Located | None] | None":
        """Return the times that the ranker without correction finds for `text` in the recordings at indexes `rows`."""
        return self.inner.find_times(text, pool, rows)

    def forget_queries(self) -> None:
        """Stop caching the embeddings of queries from now on, since the queries that people type are private."""
        self.inner.forget_queries()

    def text_vectors(self, texts: Sequence[str], normalize: bool = True) -> np.ndarray:
        """Return the embeddings of texts, (N, D) float32, uncorrected. normalize: Scale them to length 1."""
        return self.inner.text_vectors(texts, normalize)

    def clip_vectors(self, pool: Pool, normalize: bool = True) -> np.ndarray:
        """Return the pool's embeddings, (C, D) float32, uncorrected. normalize: Scale them to length 1."""
        return self.inner.clip_vectors(pool, normalize)
