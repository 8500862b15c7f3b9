"""Ranking any clips for any queries with a trained model: the score matrix as a file of its own."""

from pathlib import Path

from data_tools.cli import counted
from data_tools.datasets.blind import read_blind
from data_tools.errors import KitError
from data_tools.manifest import Clip, Query, read_manifest
from submission.formats.score_matrix import write_scores
from system.features.build import build_features
from system.runs.open import Trained
from system.runs.retrieve import rank_pool, require_readable


def read_pool(path: Path) -> list[Clip]:
    """Clips of a manifest (.jsonl), or every audio file of a folder."""
    if path.is_dir():
        return read_blind(path, path.resolve().name)[0]
    return read_manifest(path)


def rank(trained: Trained, clips: list[Clip], queries: list[Query], out: Path, allow_unknown: bool = False) -> int:
    """Write the score matrix of queries against the clips that are whole; returns how many those are. KitError when a
    query asks for a clip that is absent or broken."""
    features = build_features(clips, dict(trained.recipe.model.audio.experts), Path(trained.recipe.banks))
    asked = {clip_id for query in queries for clip_id in query.relevant or []}
    absent = sorted(asked - features.keys.keys())
    if absent:
        reason = features.broken.get(absent[0], "it is not among the clips")
        raise KitError(
            f"{counted(len(absent), 'clip')} that queries ask for cannot be ranked, first {absent[0]} ({reason}); "
            "repair them, or drop these queries"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    if not allow_unknown:
        require_readable(trained.model, queries)
    write_scores(out, rank_pool(trained.model, clips, queries, features, trained.facts.document()).matrix)
    return len(features.keys)
