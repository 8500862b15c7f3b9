"""The clips a recipe names: manifests read (and made where missing), features built, items given out."""

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path

from data_tools.__main__ import main as data_tools_main
from data_tools.manifest import Clip, read_manifest
from system import schema
from system.errors import KitError
from system.frames import Features, build_features

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Data:
    """clips: by source, all clips of its split, broken ones too. features: frames of the clips that are whole."""

    clips: dict[str, list[Clip]]
    features: Features

    def whole(self, source: str) -> list[Clip]:
        """The clips of a source that have frames."""
        return [clip for clip in self.clips[source] if clip.id in self.features.keys]


def make_missing(recipe: schema.Recipe) -> None:
    """Run the `make` commands of manifests that are not there. KitError for a missing one without a command."""
    for name, source in recipe.data.items():
        if Path(source.manifest).exists():
            continue
        if source.make is None:
            raise KitError(f"data source {name}: no manifest {source.manifest}; make it with python -m data_tools")
        log.info("making %s: %s", name, source.make)
        if data_tools_main(shlex.split(source.make)[3:]) or not Path(source.manifest).exists():
            raise KitError(f"data source {name}: `{source.make}` did not make {source.manifest}; see its message above")


def read_clips(recipe: schema.Recipe) -> dict[str, list[Clip]]:
    """By source, the clips of its split. KitError for a split that a manifest does not have."""
    manifests = {source.manifest: None for source in recipe.data.values()}
    read = {path: read_manifest(path) for path in manifests}
    clips = {}
    for name, source in recipe.data.items():
        clips[name] = [clip for clip in read[source.manifest] if clip.split == source.split]
        if not clips[name]:
            found = ", ".join(sorted({clip.split for clip in read[source.manifest]}))
            raise KitError(f"data source {name}: {source.manifest} has no split {source.split}, it has {found}")
    return clips


def load_data(recipe: schema.Recipe, strict: bool = False) -> Data:
    """Read every source and build what the banks lack."""
    clips = read_clips(recipe)
    everything = list({clip.id: clip for source in clips.values() for clip in source}.values())
    features = build_features(everything, dict(recipe.model.audio.experts), Path(recipe.banks), strict)
    return Data(clips, features)
