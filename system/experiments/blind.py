"""Blind sets: clips and queries of a challenge that nobody outside knows the relevance of, ranked at a run's end."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.manifest import Clip, Query, read_queries
from submission.editions import get_edition
from submission.formats.edition_csv import write_csv
from submission.formats.score_matrix import ScoreMatrix, read_scores, write_scores
from submission.metrics.blend import blend
from submission.runs.record import BlindResult
from system.recipe import schema
from system.runs.folder import Run

if TYPE_CHECKING:
    from system.experts.base import Device
    from system.features.build import Features
    from system.models.retrieval import RetrievalModel

log = logging.getLogger(__name__)


class BlindSet(NamedTuple):
    """features: frames of all its clips."""

    clips: list[Clip]
    queries: list[Query]
    features: "Features"


def blind_entries(recipe: schema.Recipe) -> list[str]:
    """The rank entries of blind sets that are there, and the means of such."""
    return [name for name in recipe.rank if name not in recipe.scored and not _absent(recipe, name)]


def absent_lines(recipe: schema.Recipe) -> list[str]:
    """A line for every blind set's entry that cannot be ranked yet."""
    later = "the same command ranks it later, and trains nothing again"
    return [
        f"{name}: not ranked yet, without {' and '.join(absent)}; {later}"
        for name in recipe.rank
        if name not in recipe.scored and (absent := _absent(recipe, name))
    ]


def _absent(recipe: schema.Recipe, name: str) -> list[str]:
    ranked = recipe.ranked(name)
    return ranked.absent if isinstance(ranked, schema.RankBlind) else []


def open_blind_sets(recipe: schema.Recipe, device: "Device | None") -> dict[tuple[str, str], BlindSet]:
    """By audio and queries; computes the frames that the banks lack, on this device. KitError for broken audio, and
    whatever reading them raises."""
    from system.features.build import build_features
    from system.runs.pool import read_pool

    sets: dict[tuple[str, str], BlindSet] = {}
    for name in blind_entries(recipe):
        entry = recipe.ranked(name)
        assert isinstance(entry, schema.RankBlind)
        if (entry.audio, entry.queries) in sets:
            continue
        (clips, others), queries = read_pool(Path(entry.audio), None), read_queries(entry.queries)
        if others:
            log.warning("blind set %s: skipped what is no audio (%d): %s", entry.audio, len(others), ", ".join(others))
        features = build_features(clips, dict(recipe.model.audio.experts), Path(recipe.banks), device=device)
        broken = [features.broken[clip.id] for clip in clips if clip.id not in features.keys]
        if broken:
            raise KitError(
                f"the blind set {entry.audio}: broken audio of {counted(len(broken), 'clip')}, first {broken[0]}"
            )
        sets[entry.audio, entry.queries] = BlindSet(clips, queries, features)
    return sets


def rank_blind_sets(
    recipe: schema.Recipe, run: Run, sets: dict[tuple[str, str], BlindSet], model: "RetrievalModel"
) -> dict[str, BlindResult]:
    """Score matrix and the edition's CSV of every blind set that is there."""
    found = {}
    for name in blind_entries(recipe):
        entry = recipe.rank[name]
        assert not isinstance(entry, schema.RankByCheckpoint)
        if isinstance(entry, schema.RankByMean):
            matrix = blend({part: read_scores(run.scores_file(part)) for part in entry.of})
            taken = f"mean of {', '.join(entry.of)}"
        else:
            matrix, taken = _ranked(recipe, entry, run, sets[entry.audio, entry.queries], model)
        edition, csv = get_edition(entry.edition), run.folder / "submission" / f"{name}.csv"
        for path in (run.scores_file(name), csv):
            path.parent.mkdir(exist_ok=True)
        write_scores(run.scores_file(name), replace(matrix, facts={**matrix.facts, "edition": edition.name}))
        write_csv(matrix, csv, edition)
        found[name] = BlindResult(
            queries=len(matrix),
            clips=len(matrix.clip_ids),
            checkpoint=taken,
            edition=edition.name,
            scores=str(run.scores_file(name)),
            csv=str(csv),
        )
    return found


def _ranked(
    recipe: schema.Recipe, entry: schema.RankBlind, run: Run, blind: BlindSet, model: "RetrievalModel"
) -> tuple[ScoreMatrix, str]:
    from system.runs.checkpoints import load_checkpoint
    from system.runs.open import facts_of
    from system.runs.retrieve import rank_pool

    if unknown := model.text.unreadable([query.text for query in blind.queries]):
        log.warning(
            "%d queries of %s have no word that the model knows, first %r; for them all clips are alike and stand in "
            "the order of their names", len(unknown), entry.queries, unknown[0],
        )  # fmt: skip
    taken = load_checkpoint(model, run.folder / entry.stage, entry.checkpoint)
    facts = facts_of(run, model, recipe, taken).document()
    return rank_pool(model, blind.clips, blind.queries, blind.features, facts).matrix, taken
