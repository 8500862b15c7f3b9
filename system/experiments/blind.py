"""Blind sets: clips and queries of a challenge, whose relevant clips only the organisers know."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import quick_checksum
from data_tools.manifest import read_queries
from system.audio.base import Device
from system.features.extract import build_features
from system.ranking.entries import RankBlind, RankedSet
from system.recipe import schema
from system.retriever import list_clips


class BlindSet(NamedTuple):
    """A blind set, and a checksum of its queries and of the names and contents of its files."""

    ranked: RankedSet
    sha256: str


def blind_entry(recipe: schema.Recipe, name: str) -> RankBlind | None:
    """Return the blind set's entry that a rank entry is, or combines; None for others."""
    ranked = recipe.ranked(name)
    return ranked if isinstance(ranked, RankBlind) else None


def blind_checksum(entry: RankBlind) -> str | None:
    """Return the checksum of a blind set, of the ends of its files; None if a file is missing."""
    if entry.missing_files:
        return None
    lines = [f"{query.id}\0{query.text}" for query in read_queries(Path(entry.queries))]
    for clip in list_clips(entry.audio).clips:
        lines.append(f"{clip.id}\0{quick_checksum(Path(clip.path)) if Path(clip.path).is_file() else ''}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def open_blind_sets(recipe: schema.Recipe, names: list[str], device: Device | None) -> dict[str, BlindSet]:
    """Open the blind sets of rank entries, and compute their missing frames. All clips must be readable."""
    sets: dict[tuple[str, str], BlindSet] = {}
    opened = {}
    for name in names:
        entry = blind_entry(recipe, name)
        if entry is None or entry.missing_files:
            continue
        key = entry.audio, entry.queries
        if key not in sets:
            clips, queries = list_clips(entry.audio).clips, read_queries(Path(entry.queries))
            experts, ids = recipe.model.audio.experts, {clip.id for clip in clips}
            features = build_features(clips, experts, Path(recipe.banks), device=device, whole=ids)
            if broken := [features.broken[clip.id] for clip in clips if clip.id not in features.keys]:
                raise KitError(
                    f"blind set {entry.audio}: {counted(len(broken), 'clip')} cannot be read, first {broken[0]}; all "
                    "clips must be ranked, so repair these, or unpack the set again"
                )
            sets[key] = BlindSet(RankedSet(clips, queries, features), blind_checksum(entry) or "")
        opened[name] = sets[key]
    return opened


def missing_blind_lines(recipe: schema.Recipe, ranked: set[str]) -> list[str]:
    """Return a message for each rank entry that was not ranked, since files of its blind set are missing."""
    return [
        f"rank entry {name} is not ranked yet, since {' and '.join(entry.missing_files)} missing; once they exist, "
        "run the same command again to rank it; nothing is trained again"
        for name in recipe.rank
        if name not in ranked and (entry := blind_entry(recipe, name)) and entry.missing_files
    ]
