"""Load the data of a recipe.

Read the manifests of a recipe, compute missing frames, and list the training items.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NoReturn

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import quick_checksum
from data_tools.manifest import Clip, of_split, read_manifest
from data_tools.moments import Moment, read_moments
from system.audio.base import Device
from system.batches.augment import Augmentation
from system.batches.items import Item, Sampler, make_items, make_moment_items
from system.features.extract import Features, build_features
from system.recipe import schema
from system.recipe.manifests import few_clips

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Data:
    """The data of a recipe.

    clips: Dict from data source to all clips of its split, including unreadable clips. features: Frames of the readable
    clips. augmentations: Dict from stage to its augmentation, for stages with augmentation. moments: Dict from data
    source to its moments, for sources with a moments file.
    """

    clips: dict[str, Sequence[Clip]]
    features: Features
    augmentations: dict[str, Augmentation] = field(default_factory=dict)
    moments: dict[str, list[Moment]] = field(default_factory=dict)

    def texts(self, sources: Iterable[str]) -> set[str]:
        """Return all captions of data sources, and all texts of their moments."""
        captions = {text for source in sources for clip in self.clips[source] for text in clip.captions}
        return captions | {moment.text for source in sources for moment in self.moments.get(source, ())}

    def readable_clips(self, source: str) -> list[Clip]:
        """Return the clips of a data source whose frames could be computed."""
        return [clip for clip in self.clips[source] if clip.id in self.features.keys]

    def items(self, source: str, unit: str) -> list[Item]:
        """Return the training items of a data source, made from its readable clips.

        unit: Kind of item: pair, clip or moment.
        """
        if unit == "moment":
            return make_moment_items(self.readable_clips(source), self.moments[source])
        return make_items(self.readable_clips(source), unit)

    def sampler(self, name: str, stage: schema.Stage, seed: tuple[int, int]) -> Sampler:
        """Return the sampler that draws the batches of a stage. Raises KitError if no batch is possible.

        name: Name of the stage. seed: The seed of the recipe, and the index of the stage.
        """
        sources, train = [self.items(source, stage.unit) for source in stage.train.data], stage.train
        try:
            augment = self.augmentations.get(name)
            if augment is not None:
                augment = augment.limited_to([clip for source in train.data for clip in self.readable_clips(source)])
            count = stage.captions_per_clip
            return Sampler(sources, train.mix, stage.batch_size, count, seed, augment)
        except KitError as error:
            raise KitError(f"stage {name}: no batches can be made: {error}") from error

    def quick_checksum(self, clip: Clip) -> str:
        """Return the quick_sha256 (a checksum of parts) of a readable clip's audio file; "" if it is missing."""
        return quick_checksum(Path(clip.path)) if Path(clip.path).is_file() else ""  # embeddings need no audio

    def count_shared_clips(self, some: list[str], others: list[str]) -> int:
        """Return the number of clips of the data sources `others` that are also in the data sources `some`.

        Two clips are the same if they have the same audio, or are of the same Freesound recording. Data sets often
        contain different excerpts of one recording.
        """
        known = [clip for name in some for clip in self.readable_clips(name)]
        contents = {self.features.keys[clip.id] for clip in known}
        recordings = {clip.freesound_id for clip in known} - {None}
        return sum(
            self.features.keys[clip.id] in contents or clip.freesound_id in recordings
            for clip in {clip.id: clip for name in others for clip in self.readable_clips(name)}.values()
        )


def read_clips(recipe: schema.Recipe) -> dict[str, Sequence[Clip]]:
    """Read the clips of each data source from its manifest.

    Returns: Dict from data source to the clips of its split. Raises KitError if a manifest does not have the split, or
    if two files have the same id.
    """
    read = {path: read_manifest(path) for path in {source.manifest: None for source in recipe.data.values()}}
    clips: dict[str, Sequence[Clip]] = {}
    path_of: dict[str, str] = {}
    for name, source in recipe.data.items():
        clips[name] = of_split(read[source.manifest], source.split, f"data source {name}: {source.manifest}")
        for clip in clips[name] if len(read) > 1 else ():  # ids are unique within one manifest
            if path_of.setdefault(clip.id, clip.path) != clip.path:
                raise KitError(
                    f"data source {name}: two clips have the id {clip.id}, {path_of[clip.id]} and {clip.path}; "
                    "make one of the manifests again with another --name"
                )
    return clips


def load_data(
    recipe: schema.Recipe,
    strict: bool = False,
    device: "Device | None" = None,
) -> Data:
    """Read every data source, and compute missing frames. strict: Raise KitError for a broken file.

    device: Device of the experts;
    None: this machine's default.
    Raises KitError if no audio of a data source is readable. Missing audio and augmentation files that do not fit the
    clips are reported before any computation.
    """
    clips: dict[str, Sequence[Clip]] = {}
    clips |= {name: list(part) for name, part in read_clips(recipe).items()}  # parsed once
    annotated = {name: source for name, source in recipe.data.items() if source.moments}
    listed = {path: read_manifest(path) for path in {one.manifest for one in annotated.values()}}
    moments = {name: _moments_of(name, one, clips[name], listed[one.manifest]) for name, one in annotated.items()}
    is_read = recipe.model.audio.reads_clips
    for name, source in recipe.data.items():
        if count_and_cure := few_clips(source, len(clips[name])):
            log.warning("data source %s has too few clips: %s has %s", name, source.manifest, count_and_cure)
        if is_read and not any(Path(clip.path).is_file() for clip in clips[name]):
            _refuse_source(name, source, clips[name], f"{clips[name][0].path}: no such audio file")
    augmentations = read_augmentations(recipe, clips)
    everything = list(
        chain.from_iterable(
            {(source.manifest, source.split): clips[name] for name, source in recipe.data.items()}.values()
        )
    )
    experts = dict(recipe.model.audio.experts)
    features = build_features(
        everything,
        experts,
        Path(recipe.banks),
        strict,
        device,
        whole={clip.id for name in recipe.data.keys() - set(recipe.trained_on) for clip in clips[name]},
    )
    for name, source in recipe.data.items():
        if all(clip.id in features.broken for clip in clips[name]):
            first = features.broken[clips[name][0].id]
            if not is_read:
                raise KitError(
                    f"data source {name}: none of its clips has an embedding (first: {first}); add their embeddings "
                    "to the files"
                )
            _refuse_source(name, source, clips[name], first)
    return Data(clips, features, augmentations, moments)


def _moments_of(name: str, source: schema.Source, clips: Sequence[Clip], listed: Sequence[Clip]) -> list[Moment]:
    """Read the moments of a data source's clips; `listed`: all of its manifest. Raises KitError if there are none."""
    ids, moments = {clip.id for clip in clips}, read_moments(source.moments or "", listed)
    found = [moment for moment in moments if moment.clip in ids]
    if not found:
        raise KitError(
            f"data source {name}: {source.moments} has no moment of its {counted(len(clips), 'clip', ',')}; "
            f"name the moments file that was made with {source.manifest}"
        )
    return found


def read_augmentations(recipe: schema.Recipe, clips: Mapping[str, Sequence[Clip]]) -> dict[str, Augmentation]:
    """Read the augmentation files of all stages. Returns: Dict from stage to its augmentation.

    clips: Dict from data source to its clips. Raises KitError for files that do not fit the clips.
    """
    return {
        name: Augmentation(stage.augment, [clip for source in stage.train.data for clip in clips[source]])
        for name, stage in recipe.stages.items()
        if stage.augment
    }


def _refuse_source(name: str, source: schema.Source, clips: Sequence[Clip], first: str) -> NoReturn:
    """Raise KitError, since no audio of a data source can be read. first: The first clip's error message."""
    raise KitError(
        f"data source {name}: no audio of its {counted(len(clips), 'clip', ',')} can be read (first: {first}); "
        f"put the files at these paths, or make {source.manifest} again with the right folder"
    )
