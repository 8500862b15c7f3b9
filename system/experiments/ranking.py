"""Rank the entries of a run.

Ranking writes scores and the edition's files, and computes metrics. An entry is ranked once results/ENTRY.json is
there, with the settings that it depends on. A blind set is ranked once its files are there.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_tools.cli import counted
from data_tools.files import read_json, write_json
from data_tools.manifest import Clip, Query, caption_queries, read_queries
from submission.editions import get_edition
from submission.formats.csv_files import csv_of, write_csv
from submission.formats.score_matrix import ScoreMatrix, matrix_from_blocks, read_scores, write_scores
from submission.runs.entry import ranked_result
from submission.runs.record import BlindResult, Record, write_clips
from system.audio import Device
from system.batches.loader import Taught
from system.experiments.moments import rank_moments
from system.experiments.summary import ceiling_of
from system.features.extract import Features, build_features
from system.models.retrieval import RetrievalModel
from system.ranking.embedding import require_known_words, require_readable
from system.ranking.entries import CHECKPOINT, ByOneModel, RankBlind, RankedSet, RankEntry, RankMoments, matrix_labels
from system.recipe import schema
from system.recipe.data import Data
from system.retriever import Retriever, list_clips
from system.runs.checkpoints import load_checkpoint
from system.runs.folder import Run
from system.runs.open import Trained, model_facts, open_trained, untrained_origin
from system.runs.provenance import checksums, count_trained_clips
from system.training.teachers import teacher_embeddings

log = logging.getLogger(__name__)


@dataclass
class RunRanking:
    """What rank entries need of a run.

    Attributes:
        model: The only one: an entry loads its checkpoint, or the initial weights, before it scores.
        initial: Weights before training, on the CPU.
    """

    recipe: schema.Recipe
    run: Run
    data: Data
    model: RetrievalModel
    initial: Mapping[str, torch.Tensor]
    blind: dict[str, RankedSet] = field(default_factory=dict)  # by rank entry
    of_untrained: dict[str, ScoreMatrix] = field(default_factory=dict)  # scores before training, by data source

    def retriever(self, stage: str | None, checkpoint: str | None, features: Features) -> Retriever:
        """Return the model at a checkpoint, or before training.

        Args:
            features: Frames of the clips that it ranks.
        """
        if stage is None:
            self.model.load_state_dict(self.initial)
            origin = untrained_origin(self.recipe)
        else:
            origin = load_checkpoint(self.model, self.run.folder / stage, checkpoint or "last")
        facts = model_facts(self.model, self.recipe, origin, self.run)
        return Retriever(Trained(self.model, self.recipe, facts, self.run.folder), features=features)

    def source(self, name: str) -> RankedSet:
        """Return a data source's readable clips and their captions."""
        clips = self.data.readable_clips(name)
        return RankedSet(clips, caption_queries(clips), self.data.features)

    def ranked(self, name: str) -> RankedSet:
        """Return the clips and queries that an entry ranks."""
        return self.blind.get(name) or self.source(self.recipe.ranked_source(name))

    def earlier(self, name: str) -> ScoreMatrix:
        """Return the scores of an earlier entry."""
        return read_scores(self.run.file("scores", name))

    def other(self, folder: str, ranked: RankedSet) -> ScoreMatrix:
        """Return the scores by another run or an exported model."""
        banks = Path(self.recipe.banks)
        retriever = Retriever(open_trained(Path(folder), device=self.model.device, banks=banks), banks / "models")
        return retriever.matrix(ranked.queries, retriever.open(ranked.clips, strict=True))

    def taught(self, teacher: str, clips: Sequence[Clip]) -> Taught:
        """Return a teacher's embeddings of clips and of their captions."""
        return teacher_embeddings(teacher, self.recipe, self.run, clips, self.data, self.model.device)

    def before_training(self, source: str) -> ScoreMatrix:
        """Return a data source's scores by the initial model."""
        if source not in self.of_untrained:
            log.info("ranking %s with the untrained model too, for comparison", source)
            ranked, retriever = self.source(source), self.retriever(None, None, self.data.features)
            self.of_untrained[source] = retriever.matrix(ranked.queries, retriever.open(ranked.clips))
        return self.of_untrained[source]

    def prepare(self) -> None:
        """Open blind sets, and find errors before the training.

        A set that several entries rank is opened once. Ranked recordings that are trained on are warned about.
        """
        recipe, broken = self.recipe, self.data.features.broken
        pools = {name: one.pool for name in recipe.rank if (one := recipe.blind(name)) and not one.missing_files}
        sets = {pool: _open_blind_set(recipe, *pool, self.model.device) for pool in dict.fromkeys(pools.values())}
        self.blind |= {name: sets[pool] for name, pool in pools.items()}
        for name, entry in recipe.scored.items():
            source = recipe.ranked_source(name)
            require_readable(self.data.clips[source], broken, f"rank entry {name}, data source {source}", every=True)
            if isinstance(recipe.ranked(name), ByOneModel):
                require_known_words(self.model, self.source(source).queries)
            if entry.csv:
                require_csv(*self.source(source)[:2], entry)
        for name, ranked in self.blind.items():
            require_csv(*ranked[:2], recipe.rank[name])
            if unknown := self.model.text.without_known_words([query.text for query in ranked.queries]):
                some = counted(len(unknown), "query")
                said = "rank entry %s: no known word in %s, first %r; clips keep their order"
                log.warning(said, name, some, unknown[0])
        for source in dict.fromkeys(map(recipe.ranked_source, recipe.scored)):
            if shared := count_trained_clips(self.run, source, self.data):
                some = counted(shared, "recording")
                log.warning("training uses %s of the ranked data source %s: its metrics are too high", some, source)

    def rank(self) -> None:
        """Rank what is not ranked; remove files of gone entries."""
        for name in self.run.ranked_entries() - self.recipe.rank.keys():
            log.warning("removing the files of rank entry %s, which the recipe no longer has", name)
            self.run.forget(name)
        for name in self.recipe.rank:
            if is_ranked(self.recipe, self.run, name):
                continue
            self.run.forget(name)
            if name in self.blind or not self.recipe.blind(name):  # else its files were missing when the run started
                self._rank_entry(name)

    def _rank_entry(self, name: str) -> None:
        """Rank an entry, and write its files."""
        run, entry, identity = self.run, self.recipe.rank[name], _identity(self.recipe, name)
        if isinstance(entry, RankMoments):
            retriever = self.retriever(entry.stage, entry.checkpoint, self.data.features)
            result: Record = rank_moments(name, entry, self.data, retriever)
        else:
            result = self._rank_clips(name, entry)
        files = [path.relative_to(run.folder).as_posix() for path in run.files(name)]
        write_json(run.file("result", name), {"identity": identity, "files": files, "result": result.document()})

    def _rank_clips(self, name: str, entry: RankEntry) -> Record:
        recipe, run, edition = self.recipe, self.run, get_edition(entry.edition)
        is_blind, ranked = name in self.blind, self.ranked(name)
        sizes = counted(len(ranked.queries), "caption", ","), counted(len(ranked.clips), "clip", ",")
        log.info("rank entry %s: ranking %s against %s", name, *sizes)
        matrix = entry.scores(ranked, self)
        write_scores(run.file("scores", name), replace(matrix, facts=matrix.facts | {"edition": edition.name}))
        if is_blind or entry.csv:
            write_csv(matrix, run.file("csv", name), edition)
        checkpoint = matrix.facts[CHECKPOINT]
        if is_blind:
            shape = {"queries": len(matrix), "clips": len(matrix.clip_ids)}
            return BlindResult(checkpoint=checkpoint, edition=edition.name, **shape)
        write_clips(run.file("clips", name), ranked.clips)
        source, first = recipe.ranked_source(name), recipe.ranked(name)
        is_trained = isinstance(first, ByOneModel) and first.stage is not None
        return ranked_result(
            matrix,
            edition,
            self.before_training(source) if is_trained else None,
            data=source,
            checkpoint=checkpoint,
            ceiling=ceiling_of(recipe.data[source]),
            also_trained_on=count_trained_clips(run, source, self.data, entry.other_models),
        )


def require_csv(clips: Sequence[Clip], queries: Sequence[Query], entry: RankEntry) -> None:
    """Refuse what the CSV of an entry's edition cannot hold."""
    labels = matrix_labels(clips, queries, {})
    csv_of(matrix_from_blocks(labels, [np.zeros(labels.shape, np.float32)]), get_edition(entry.edition))


def _open_blind_set(recipe: schema.Recipe, audio: str, queries: str, device: Device) -> RankedSet:
    """Open a blind set, whose clips must all be readable."""
    clips, asked = list_clips(audio), read_queries(Path(queries))
    experts, banks = recipe.model.audio.experts, Path(recipe.banks)
    features = build_features(clips, experts, banks, device=device, whole={clip.id for clip in clips})
    require_readable(clips, features.broken, f"blind set {audio}", every=True)
    return RankedSet(clips, asked, features)


def _identity(recipe: schema.Recipe, name: str) -> dict[str, Any]:
    """Return what an entry's scores depend on besides training.

    Files that are not on this machine are left out.
    """
    entry = recipe.rank[name]
    found: dict[str, Any] = {f"rank.{name}": entry.model_dump(mode="json")}
    found |= {f"data.{source}": recipe.data[source].model_dump(mode="json") for source in entry.sources}
    is_blind = any(recipe.data[source].split == "blind" for source in entry.sources)
    given = getattr(recipe.model.text, "blind_files", ()) if is_blind else ()
    settings = [Path(run, "resolved.json") for run in entry.other_models]  # its first entry names the checkpoint
    found |= checksums(map(Path, entry.other_models), [*map(Path, given), *settings])
    if isinstance(entry, RankBlind) and not entry.missing_files:
        found["queries"] = [[query.id, query.text] for query in read_queries(Path(entry.queries))]
        found["clips"] = {clip.id: Data.quick_checksum(clip) for clip in list_clips(entry.audio)}
    for other in entry.combined_entries:
        found |= _identity(recipe, other)
    return found


def is_ranked(recipe: schema.Recipe, run: Run, name: str) -> bool:
    """Return whether an entry's files are there and current.

    Inputs that are gone since then are not compared.
    """
    path = run.file("result", name)
    if not path.exists():
        return False
    noted = read_json(path)
    is_there = all((run.folder / file).exists() for file in noted["files"])
    return is_there and bool(noted["identity"] | _identity(recipe, name) == noted["identity"])
