"""Rank blind sets.

Blind sets: clips and queries of a challenge, ranked at the end of a run. Only the organisers know the relevant clips.
"""

import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from data_tools.cli import counted
from data_tools.datasets.blind import folder_clips
from data_tools.errors import KitError
from data_tools.manifest import Clip, Query, of_split, read_manifest, read_queries
from submission.runs.record import BlindResult
from system.ranking.checkpoint import RankBlind
from system.recipe import schema
from system.runs.provenance import contents_checksum

if TYPE_CHECKING:
    from system.audio.base import Device
    from system.features.extract import Features

log = logging.getLogger(__name__)


class BlindSet(NamedTuple):
    """Clips, queries and frames of a blind set.

    features: Frames of all clips. sha256: Checksum of the names and contents of all clips and queries.
    """

    clips: Sequence[Clip]
    queries: list[Query]
    features: "Features"
    sha256: str


def blind_entries(recipe: schema.Recipe) -> list[str]:
    """Return the names of the rank entries whose blind sets can be ranked, because the files of the sets exist."""
    return [name for name in _blind_entry_names(recipe) if not _missing_files(recipe, name)]


def _blind_entry_names(recipe: schema.Recipe) -> list[str]:
    """Return the names of the rank entries that rank blind sets, also of sets whose files are missing."""
    return [name for name in recipe.rank if isinstance(recipe.ranked(name), RankBlind)]


def missing_blind_lines(recipe: schema.Recipe, ranked: Collection[str] = ()) -> list[str]:
    """Return one message per rank entry that is not in `ranked` and whose blind set has missing files.

    A blind set consists of clips and queries whose relevant clips are secret. ranked: Names of the rank entries that
    were ranked before.
    """
    return [
        f"rank entry {name} is not ranked yet, since {' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} "
        "missing; once the blind set is complete, run the same command again to rank it; nothing is trained again"
        for name in _blind_entry_names(recipe)
        if name not in ranked and (absent := _missing_files(recipe, name))
    ]


def _missing_files(recipe: schema.Recipe, name: str) -> list[str]:
    """Return the missing files of the blind set of a rank entry; an empty list if the entry ranks no blind set."""
    ranked = recipe.ranked(name)
    return ranked.missing_files if isinstance(ranked, RankBlind) else []


def changed_entries(recipe: schema.Recipe, ranked: Mapping[str, BlindResult]) -> list[str]:
    """Return the names of rank entries whose blind sets exist and are new, or changed since their results in `ranked`.

    ranked: Dict from rank entry to its earlier result. A set has changed if its clips or queries have changed. A file
    with the same name, size and modification time is not read again. Raises an error if a blind set cannot be read.
    """
    checksums: dict[tuple[str, str], str] = {}
    changed = []
    for name in blind_entries(recipe):
        noted = ranked[name].sha256 if name in ranked else ""
        entry = recipe.ranked(name)
        assert isinstance(entry, RankBlind)
        if noted and (entry.audio, entry.queries) not in checksums:
            clips, queries = _read_blind_set(entry)
            keys = _content_keys(clips, recipe)
            checksums[entry.audio, entry.queries] = _blind_set_checksum(clips, queries, keys)
        if noted != checksums.get((entry.audio, entry.queries)):
            changed.append(name)
    return changed


def _content_keys(clips: Sequence[Clip], recipe: schema.Recipe) -> Mapping[str, str]:
    """Return a dict from clip id to its audio's checksum, or to its embedding's key if the model reads embeddings."""
    from system.features.extract import build_features, content_keys

    if not recipe.model.audio.reads_clips:
        return build_features(clips, recipe.model.audio.experts, Path(recipe.banks)).keys
    with ThreadPoolExecutor() as threads:
        found = content_keys(clips, threads)
    return {name: str(key) for name, key in found.items()}


def _read_blind_set(entry: RankBlind) -> tuple[Sequence[Clip], list[Query]]:
    """Read the clips and the queries of a blind set."""
    path = Path(entry.audio)
    clips = folder_clips(path, path.resolve().name)[0] if path.is_dir() else of_split(read_manifest(path), None, path)
    return clips, read_queries(Path(entry.queries))


def _blind_set_checksum(clips: Sequence[Clip], queries: Sequence[Query], keys: Mapping[str, str]) -> str:
    """Return one sha256 of all clips and queries of a blind set. keys: Dict from clip id to its audio's checksum."""
    lines = "".join(f"{query.id}\0{query.text}\n" for query in queries)
    return hashlib.sha256(f"{contents_checksum(clips, keys)}\n{lines}".encode()).hexdigest()


def open_blind_sets(recipe: schema.Recipe, names: Sequence[str], device: "Device | None") -> dict[str, BlindSet]:
    """Open the blind sets of the rank entries `names`, and compute their missing frames on `device`.

    Returns: Dict from the name of a rank entry to its blind set. Raises an error if a clip or a blind set cannot be
    read.
    """
    from system.features.extract import build_features

    sets: dict[tuple[str, str], BlindSet] = {}
    opened = {}
    for name in names:
        entry = recipe.ranked(name)
        assert isinstance(entry, RankBlind)
        if (entry.audio, entry.queries) not in sets:
            clips, queries = _read_blind_set(entry)
            features = build_features(
                clips,
                recipe.model.audio.experts,
                Path(recipe.banks),
                device=device,
                whole={clip.id for clip in clips},
            )
            broken = [features.broken[clip.id] for clip in clips if clip.id not in features.keys]
            if broken:
                cure = (
                    "repair these files or unpack the set again"
                    if recipe.model.audio.reads_clips
                    else "add the missing embeddings"
                )
                raise KitError(
                    f"blind set {entry.audio}: {counted(len(broken), 'clip')} cannot be read, first {broken[0]}; "
                    f"all clips of a blind set must be ranked, so {cure}"
                )
            checksum = _blind_set_checksum(clips, queries, features.keys)
            sets[entry.audio, entry.queries] = BlindSet(clips, queries, features, checksum)
        opened[name] = sets[entry.audio, entry.queries]
    return opened
