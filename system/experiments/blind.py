"""Blind sets: clips and queries of a challenge, whose relevant clips only the organisers know."""

import hashlib
from pathlib import Path

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import quick_checksum
from data_tools.manifest import read_queries
from system.audio.base import Device
from system.features.extract import build_features
from system.ranking.entries import RankBlind, RankedSet
from system.recipe import schema
from system.retriever import list_clips


def blind_entry(recipe: schema.Recipe, name: str) -> RankBlind | None:
    """Return the blind set's entry that a rank entry is, or combines; None for others."""
    ranked = recipe.ranked(name)
    return ranked if isinstance(ranked, RankBlind) else None


def blind_checksum(entry: RankBlind) -> str:
    """Return one checksum of a blind set: of its queries, and of the names and ends of its files."""
    lines = [f"{query.id}\0{query.text}" for query in read_queries(Path(entry.queries))]
    for clip in list_clips(entry.audio).clips:  # given embeddings need no audio
        lines.append(f"{clip.id}\0{quick_checksum(Path(clip.path)) if Path(clip.path).is_file() else ''}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def open_blind_sets(recipe: schema.Recipe, device: Device | None) -> dict[str, RankedSet]:
    """Open the blind set of each rank entry, if its files are there; sets that several entries rank only once."""
    entries = {name: entry for name in recipe.rank if (entry := blind_entry(recipe, name)) and not entry.missing_files}
    unique = {(entry.audio, entry.queries): entry for entry in entries.values()}
    opened = {key: _open(recipe, entry, device) for key, entry in unique.items()}
    return {name: opened[entry.audio, entry.queries] for name, entry in entries.items()}


def _open(recipe: schema.Recipe, entry: RankBlind, device: Device | None) -> RankedSet:
    """Open a blind set, and compute its missing frames. All clips must be readable."""
    clips, queries = list_clips(entry.audio).clips, read_queries(Path(entry.queries))
    experts, banks = recipe.model.audio.experts, Path(recipe.banks)
    features = build_features(clips, experts, banks, device=device, whole={clip.id for clip in clips})
    if broken := [features.broken[clip.id] for clip in clips if clip.id not in features.keys]:
        raise KitError(
            f"blind set {entry.audio}: {counted(len(broken), 'clip')} cannot be read, first {broken[0]}; all "
            "clips must be ranked, so repair these, or unpack the set again"
        )
    return RankedSet(clips, queries, features)


def missing_blind_lines(recipe: schema.Recipe, ranked: set[str]) -> list[str]:
    """Return a message for each rank entry that was not ranked, since files of its blind set are missing."""
    return [
        f"rank entry {name} is not ranked yet, since {' and '.join(entry.missing_files)} missing; once they exist, "
        "run the same command again to rank it; nothing is trained again"
        for name in recipe.rank
        if name not in ranked and (entry := blind_entry(recipe, name)) and entry.missing_files
    ]
