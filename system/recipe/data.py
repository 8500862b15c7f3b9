"""The data of a recipe: manifests, clips, frames and moments."""

import logging
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data_tools.errors import KitError
from data_tools.files import lock, quick_checksum, write_text
from data_tools.manifest import Clip, of_split, read_manifest
from data_tools.moments import Moment, read_moments
from system.audio import Device
from system.batches.augment import Augmentation
from system.batches.items import Item, Sampler, make_items, make_moment_items
from system.features.extract import Features, build_features
from system.ranking.embedding import require_readable
from system.recipe import schema

FEW = 0.9  # share of the published clips; about a tenth of AudioCaps' videos has been deleted
OUTPUTS = ("out", "moments")  # arguments of data_tools that name a file to write

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Data:
    """The data of a recipe."""

    clips: dict[str, Sequence[Clip]]  # of each source's split, with those that cannot be read
    features: Features  # of the others
    moments: dict[str, list[Moment]] = field(default_factory=dict)  # by source
    augmentations: dict[str, Augmentation] = field(default_factory=dict)  # by stage

    def captions(self, sources: Iterable[str]) -> list[str]:
        """Return the captions of the readable clips of data sources."""
        return [text for source in sources for clip in self.readable_clips(source) for text in clip.captions]

    def new_texts(self) -> list[str]:
        """Return the texts that augmentation puts in captions' place."""
        return [text for augmentation in self.augmentations.values() for text in augmentation.new_texts()]

    def more_texts(self, sources: Iterable[str]) -> list[str]:
        """Return the training texts of moments and of augmentation."""
        return [*(moment.text for name in sources for moment in self.moments.get(name, ())), *self.new_texts()]

    def readable_clips(self, source: str) -> list[Clip]:
        """Return a source's clips whose frames could be computed."""
        return [clip for clip in self.clips[source] if clip.id in self.features.keys]

    def items(self, source: str, unit: str) -> list[Item]:
        """Return the training items of a source's readable clips."""
        if unit == "moment":
            return make_moment_items(self.readable_clips(source), self.moments[source])
        return make_items(self.readable_clips(source), unit)

    def sampler(self, name: str, stage: schema.Stage, seed: tuple[int, int]) -> Sampler:
        """Return the sampler of a stage's batches.

        Args:
            seed: The recipe's seed, and the stage's number.
        """
        items, augment = [self.items(source, stage.unit) for source in stage.train.data], self.augmentations.get(name)
        try:
            return Sampler(items, stage.train.mix, stage.batch_size, stage.captions_per_clip, seed, augment)
        except KitError as error:
            raise KitError(f"stage {name}: no batches can be made: {error}") from error

    @staticmethod
    def quick_checksum(clip: Clip) -> str:
        """Return a clip's quick checksum ("" without its file)."""
        return quick_checksum(Path(clip.path)) if Path(clip.path).is_file() else ""  # embeddings need no audio


def load_data(recipe: schema.Recipe, device: Device | None = None) -> Data:
    """Read every data source, and compute missing frames.

    Args:
        device: Of the experts; None: this machine's default.

    Raises:
        KitError: No audio of a source can be read, or moments or augmentation files do not fit the clips.
    """
    listed = {path: read_manifest(Path(path)) for path in {source.manifest: None for source in recipe.data.values()}}
    clips: dict[str, Sequence[Clip]] = {}
    moments: dict[str, list[Moment]] = {}
    path_of: dict[str, str] = {}
    for name, source in recipe.data.items():
        part = clips[name] = of_split(listed[source.manifest], source.split, f"data source {name}: {source.manifest}")
        for clip in part:
            if path_of.setdefault(clip.id, clip.path) != clip.path:
                raise KitError(
                    f"data source {name}: two clips have the id {clip.id}, {path_of[clip.id]} and {clip.path}; "
                    "make one of the manifests again with another --name"
                )
        if source.moments:
            moments[name] = moments_of(source, listed[source.manifest], part)
        if few := few_clips(source, len(part)):
            log.warning("data source %s has only %s", name, few)
        if recipe.model.audio.reads_clips and not any(Path(clip.path).is_file() for clip in part):
            raise KitError(f"data source {name}: no audio file is there, such as {part[0].path}; correct its paths")
    _augmentations(recipe, clips.__getitem__)  # finds a fault before frames are computed
    every_clip = {clip.id: clip for part in clips.values() for clip in part}.values()
    whole = {clip.id for name in recipe.data.keys() - set(recipe.trained_on) for clip in clips[name]}
    experts = dict(recipe.model.audio.experts)
    features = build_features(every_clip, experts, Path(recipe.banks), device=device, whole=whole)
    for name, found in clips.items():
        require_readable(found, features.broken, f"data source {name}")
    data = Data(clips, features, moments)
    return replace(data, augmentations=_augmentations(recipe, data.readable_clips))


def _augmentations(recipe: schema.Recipe, clips_of: Callable[[str], Sequence[Clip]]) -> dict[str, Augmentation]:
    """Read the augmentation of each stage that has one."""
    return {
        name: Augmentation(stage.augment, [clip for source in stage.train.data for clip in clips_of(source)])
        for name, stage in recipe.stages.items()
        if stage.augment
    }


def moments_of(source: schema.Source, listed: Sequence[Clip], part: Sequence[Clip]) -> list[Moment]:
    """Return the moments of a source's clips.

    Args:
        listed: All clips of the manifest.
        part: The clips of the source.

    Raises:
        KitError: There are no such moments.
    """
    ids = {clip.id for clip in part}
    found = [one for one in read_moments(Path(str(source.moments)), listed) if one.clip in ids]
    if not found:
        raise KitError(f"{source.moments} has no moment of the source's clips; name their file")
    return found


def make_missing(recipe: schema.Recipe) -> None:
    """Make the manifests that are missing.

    MANIFEST.made_by stores the command. Of several processes, one makes a manifest while the others wait.

    Raises:
        KitError: A weight file is missing; a manifest is missing and has no command, or was made by another command; or
            a command fails.
    """
    recipe.model.require_files()  # before anything is made
    for name, source in recipe.data.items():
        manifest, command = Path(source.manifest), recipe.making(source).make
        if command is None and not manifest.exists():
            raise KitError(f"data source {name}: no manifest {manifest}; correct the path, or make it with lbar data")
        if command is None or _is_made(name, manifest, command):
            continue
        # The lock is not in the manifest's folder, because the command needs that folder empty.
        with lock(Path(recipe.banks) / "make.lock", f"waiting for another process that makes {manifest}", wait=True):
            if not _is_made(name, manifest, command):
                _make(name, manifest, command)


def _is_made(name: str, manifest: Path, command: str) -> bool:
    record = Path(f"{manifest}.made_by")
    made = record.read_text(encoding="utf-8").strip() if manifest.exists() and record.exists() else command
    if made != command:
        raise KitError(
            f"data source {name}: {manifest} was made by `{made}`, but `make` is `{command}`; "
            "delete it, or name another manifest"
        )
    return manifest.exists()


def _make(name: str, manifest: Path, command: str) -> None:
    from data_tools.__main__ import main  # imports the verb

    input_paths(command, manifest)  # an error for a wrong command
    log.info("data source %s: making its manifest with %s", name, command)
    if main(shlex.split(command)[2:], inside=True) or not manifest.exists():
        raise KitError(f"data source {name}: `{command}` did not make {manifest}; see its output above")
    write_text(Path(f"{manifest}.made_by"), command + "\n")


def few_clips(source: schema.Source, count: int) -> str:
    """Say that a source lacks published clips, or return ""."""
    if source.expected is None or count >= FEW * source.expected.clips:
        return ""
    return f"{count:,} of {source.expected.clips:,} published clips; get the others, then delete {source.manifest}"


def input_paths(command: str, manifest: Path) -> list[Path]:
    """Return the files and folders that a `make` command reads.

    Raises:
        KitError: `lbar data` does not accept the command, or it writes another manifest.
    """
    import typer

    from data_tools.__main__ import app_of

    words = shlex.split(command)[2:]
    group: Any = typer.main.get_command(app_of(words))
    try:
        context = group.make_context("lbar data", list(words))
        _, verb, rest = group.resolve_command(context, words)
        arguments = verb.make_context(verb.name, rest, parent=context).params
    except Exception:
        raise KitError(
            f"lbar data does not accept `{shlex.join(words)}`; correct the data source's `make`, see lbar data --help"
        ) from None
    out = arguments.get("out")
    if isinstance(out, Path) and out.suffix == ".jsonl" and os.path.abspath(out) != os.path.abspath(manifest):
        raise KitError(f"the command `make` writes {out}, but `manifest` is {manifest}; correct one of them")
    values = [value for key, value in arguments.items() if key not in OUTPUTS]
    paths = [path for value in values for path in (value if isinstance(value, list) else [value])]
    return [path for path in paths if isinstance(path, Path)]
