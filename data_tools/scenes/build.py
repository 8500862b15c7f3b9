"""Verb scenes: compose clips.

Composed scenes: a captioned data set made of single sound events, in Clotho's layout.

All random choices depend on (seed, split, number of the clip), so that later clips do not change earlier ones.
"""

import argparse
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data_tools.audio import content_key
from data_tools.cli import counted, each
from data_tools.datasets.clotho import CLOTHO_SPLITS, read_clotho
from data_tools.errors import DataError
from data_tools.files import remove_parts
from data_tools.manifest import TEST_SPLITS, Split, write_manifest
from data_tools.names import check_source
from data_tools.scenes.captions import describe, describe_noisily
from data_tools.scenes.ceiling import LABEL_COLUMNS
from data_tools.scenes.compose import KINDS, Event, draw_events, render
from data_tools.scenes.long_recordings import MOMENT_COUNTS, MomentSettings, make_moments
from data_tools.scenes.recordings import Pool, credit, table_path
from data_tools.scenes.scene_folder import FolderSettings, claim, parse_folds, write_samples
from data_tools.scenes.timeline import SHAPES
from data_tools.tables import write_table

METADATA_COLUMNS = ("file_name", "keywords", "sound_id", "sound_link", "start_end_samples", "manufacturer", "license")
DEFAULT_COUNTS = {"development": 2400, "validation": 300, "evaluation": 300}


@dataclass(frozen=True, kw_only=True)
class Settings(FolderSettings):
    """Settings of scenes. captions: "5" or "1" per clip, or "noisy" (one description in the style of uploaders)."""

    captions: str = "5"


class Scene(NamedTuple):
    """A planned clip. seed: For its audio, independent of its events and captions."""

    file_name: str
    split: Split
    kind: str
    events: list[Event]
    captions: list[str]
    seed: tuple[int, ...]


def make_scenes(out: Path, settings: Settings, recordings: Path | None = None) -> int:
    """Compose clips (scenes) of recorded or synthesised sounds in a folder; return the number of new audio files.

    The number is 0 if the folder was complete.
    recordings: The folder in ESC-50's layout, if settings.recordings is set.
    Writes scenes.json first, then the missing audio files (8 s, 16 kHz, mono, 16 bit), Clotho's tables and labels.csv.
    The columns of labels.csv are file_name, split, kind, and the events, joined by ';' in order of their start, a
    background last. Writes manifest.jsonl last. Only one process may write to a folder.
    Raises DataError for settings out of range, unusable recordings, and a folder with other content.
    """
    settings.check("clip")
    if settings.held_out and settings.captions == "noisy":
        raise DataError("--heldout-phrasings does not work with --captions noisy; leave it out")
    least = max(KINDS.values())
    pools = settings.pools(recordings, least, f"a scene needs up to {least} categories")
    claim(out, asdict(settings))
    scenes = {split: _plan_split(settings, split, count, pools[split]) for split, count in settings.counts.items()}
    n_made = 0
    for split, planned in scenes.items():
        folder = out / split
        remove_parts(folder)
        missing = [scene for scene in planned if not (folder / scene.file_name).is_file()]
        n_made += len(missing)
        for scene in each(missing, split, "clip"):
            samples = render(np.random.default_rng(scene.seed), scene.kind, scene.events)
            write_samples(folder / scene.file_name, samples)
    if n_made or not (out / "manifest.jsonl").is_file():
        _write_tables(out, scenes)
        clips, _ = read_clotho(out, list(scenes), settings.name)
        write_manifest(out / "manifest.jsonl", clips)
    return n_made


def _plan_split(settings: Settings, split: Split, count: int, pool: Pool) -> list[Scene]:
    """Return the plans of the first `count` clips of a split.

    In a test split no caption repeats, because a ranked CSV identifies a query by its text.
    """
    scenes: list[Scene] = []
    used_captions: set[str] = set()
    for number in range(1, count + 1):
        scenes.append(_plan_clip(settings, split, number, pool, used_captions))
        if split in TEST_SPLITS:
            used_captions.update(scenes[-1].captions)
    return scenes


def _plan_clip(settings: Settings, split: Split, number: int, pool: Pool, taken: Collection[str]) -> Scene:
    """Return the plan of one clip: its kind of scene, events and captions. taken: Captions of earlier clips."""
    seed = (settings.seed, CLOTHO_SPLITS.index(split), number)
    kind = list(KINDS)[(number - 1) % len(KINDS)]
    events = draw_events(np.random.default_rng((*seed, 0)), kind, pool)
    names = [event.name for event in events]
    rng = np.random.default_rng((*seed, 1))
    if settings.captions == "noisy":
        captions = [describe_noisily(rng, names)]
    else:
        held_out = 0.0 if split in TEST_SPLITS else settings.held_out
        captions = describe(rng, kind, names, int(settings.captions), held_out, taken)
    return Scene(f"{settings.name}_{split}_{number:05d}.wav", split, kind, events, captions, (*seed, 2))


def _write_tables(out: Path, scenes: Mapping[Split, list[Scene]]) -> None:
    """Write the tables of all scenes: captions and metadata per split, and labels.csv."""
    for split, planned in scenes.items():
        header = ["file_name", *(f"caption_{number}" for number in range(1, len(planned[0].captions) + 1))]
        rows = [[scene.file_name, *scene.captions] for scene in planned]
        write_table(out / f"clotho_captions_{split}.csv", header, rows)
        write_table(out / f"clotho_metadata_{split}.csv", METADATA_COLUMNS, map(_metadata_row, planned))
    every = chain.from_iterable(scenes.values())
    labels = [(one.file_name, one.split, one.kind, ";".join(event.name for event in one.events)) for one in every]
    write_table(out / "labels.csv", LABEL_COLUMNS, labels)


def _metadata_row(scene: Scene) -> list[str]:
    """Return a clip's row for Clotho's metadata table; uploaders, licences and pages of its recordings are joined."""
    links, authors, licences = credit(event.recording for event in scene.events)
    events = ";".join(event.name for event in scene.events)
    # A scene is not a Freesound sound, even if its parts are.
    return [scene.file_name, events, "Not found", links, "", authors, licences]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `scenes` to its parser."""
    add = parser.add_argument
    add("out", type=Path, help="output folder; run again with the same arguments to complete it")
    add("--seed", type=int, required=True, help="seed of the random choices; the same seed gives the same scenes")
    for split, count in DEFAULT_COUNTS.items():
        of_moments = f"number of clips (default: {count}; with --moments {MOMENT_COUNTS[split]})"
        add(f"--{split}", type=int, metavar="N", help=of_moments)
    add("--captions", choices=["5", "1", "noisy"], help="captions per clip; noisy: 1 in Freesound's style (default: 5)")
    held_out = (
        "share of the wordings of sounds, 0 to 0.5, that only captions of evaluation use (default: 0); with --moments "
        "and a share above 0, one further wording per sound is only used in validation"
    )
    add("--heldout-phrasings", type=float, default=0.0, metavar="SHARE", help=held_out)
    add("--recordings", type=Path, metavar="FOLDER", help="recordings to compose, in ESC-50's layout")
    folds = "folds of recordings per split (default: development=1,2,3 validation=4 evaluation=5)"
    add("--folds", nargs="+", metavar="SPLIT=FOLDS", help=folds)
    moments = (
        "make long recordings, and queries with the windows of one sound each. castella: short events, some "
        "several times. clotho: whole sounds, each once, as in Clotho-Moment (default: castella)"
    )
    add("--moments", nargs="?", const="castella", choices=list(SHAPES), help=moments)
    add("--length", type=float, metavar="SECONDS", help="seconds per recording, with --moments (default: 60)")
    whole = "with --moments: windows begin and end at full seconds, as CASTELLA's do"
    add("--whole-seconds", action="store_true", help=whole)
    add("--name", help="name of the clips' source, for their ids (default: the folder's name)")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `scenes`: compose clips, or long recordings with moments; return the exit status."""
    defaults = MOMENT_COUNTS if arguments.moments else DEFAULT_COUNTS
    given = {split: getattr(arguments, split) for split in CLOTHO_SPLITS}
    asked = {split: defaults[split] if count is None else count for split, count in given.items()}
    counts: dict[Split, int] = {split: count for split, count in asked.items() if count}
    folds: dict[str, list[str]] | None = None
    if arguments.recordings:
        parsed = parse_folds(arguments.folds)
        if missing := [split for split in counts if split not in parsed]:
            raise DataError(
                f"--folds gives no folds for {', '.join(missing)}; add {missing[0]}=FOLDS, or make none of its "
                f"clips by --{missing[0]} 0"
            )
        folds = {split: parsed[split] for split in counts}
    elif arguments.folds:
        raise DataError("--folds only works with --recordings FOLDER; add --recordings, or leave out --folds")
    name = check_source(arguments.name or arguments.out.absolute().name)
    table = content_key(table_path(arguments.recordings)) if arguments.recordings else None
    settings = FolderSettings(
        name=name,
        seed=arguments.seed,
        counts=counts,
        held_out=arguments.heldout_phrasings,
        recordings=table,
        folds=folds,
    )
    return (_run_moments if arguments.moments else _run_scenes)(arguments, vars(settings))


def _run_scenes(arguments: argparse.Namespace, common: dict[str, Any]) -> int:
    """Make scenes, print the result, and return the exit status. common: Values for FolderSettings."""
    if arguments.length is not None or arguments.whole_seconds:
        raise DataError("--length and --whole-seconds only work with --moments; add --moments, or leave them out")
    settings = Settings(**common, captions=arguments.captions or "5")
    n_made = make_scenes(arguments.out, settings, arguments.recordings)
    manifest, clips = arguments.out / "manifest.jsonl", counted(sum(settings.counts.values()), "clip")
    if n_made:
        print(f"wrote {manifest}: {clips}; {n_made} were made now")
    else:
        print(f"{manifest}: {clips}, complete already, nothing to do")
    return 0


def _run_moments(arguments: argparse.Namespace, common: dict[str, Any]) -> int:
    """Make recordings with moments, print the result, and return the exit status. common: Values for FolderSettings."""
    if arguments.captions:
        raise DataError("--captions only works with short scenes; leave it out with --moments")
    settings = MomentSettings(
        **common,
        moments=arguments.moments,
        seconds=60.0 if arguments.length is None else arguments.length,
        whole_seconds=arguments.whole_seconds,
    )
    queries, n_made = make_moments(arguments.out, settings, arguments.recordings)
    clips = counted(sum(settings.counts.values()), "recording")
    if not queries:
        print(f"{arguments.out / 'moments.jsonl'}: the moments of {clips} are complete already")
        return 0
    print(
        f"wrote {arguments.out / 'moments.jsonl'}: {counted(queries, 'query')} of {clips}; {n_made} recordings were "
        "made now"
    )
    return 0
