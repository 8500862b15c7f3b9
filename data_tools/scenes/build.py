"""Compose a data set of scenes or long recordings.

Events are synthetic or recorded; the folder has Clotho's layout.

All random choices depend on (seed, split, number of the clip), so that later clips do not change earlier ones.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Annotated, Literal, NamedTuple

import numpy as np
import typer

from data_tools.audio import encoded
from data_tools.cli import counted, each
from data_tools.errors import KitError
from data_tools.files import checksum, read_json, remove_parts, write_json, writing
from data_tools.manifest import TEST_SPLITS, Clip, Split, audio_clip, write_manifest
from data_tools.moments import Moment, Window, write_moments
from data_tools.names import check_source
from data_tools.scenes.captions import MAX_HELD_OUT, describe, describe_event, describe_noisily
from data_tools.scenes.mix import (
    KINDS,
    SECONDS,
    Event,
    Pool,
    TimedEvent,
    credit,
    draw_events,
    draw_timeline,
    mixed,
    read_recordings,
    render,
    table_path,
)
from data_tools.scenes.synth import CLASSES, SAMPLE_RATE, Samples
from data_tools.tables import read_table, write_table

FORMAT = 3  # version of the drawing: raised if the same arguments would give other files
FOLDS: dict[Split, list[str]] = {"development": ["1", "2", "3"], "validation": ["4"], "evaluation": ["5"]}
SPLITS = tuple(FOLDS)
METADATA = ("file_name", "keywords", "sound_id", "sound_link", "start_end_samples", "manufacturer", "license")
LABELS = ("file_name", "split", "kind", "events")
ASKED = 0.8  # probability that a sound class in a long recording gets a query


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings that determine the files; stored in scenes.json.

    Attributes:
        name: Name of the data set.
        seed: Decides all random choices.
        counts: Number of clips per split.
        held_out: Share of the wordings of sounds, and of the templates of captions, that only test splits use.
        captions: "5" or "1" per clip, or "noisy" (one description in the style of uploaders); "" for long recordings
            with moments.
        recordings: SHA-256 of the table of labelled recordings; None: events are synthesised.
        seconds: Length of a clip.
        format: Version of the program that draws.
    """

    name: str
    seed: int
    counts: dict[Split, int]
    held_out: float = 0.0
    captions: str = "5"
    recordings: str | None = None
    seconds: float = SECONDS
    format: int = FORMAT

    def rng(self, split: Split, number: int, purpose: int) -> np.random.Generator:
        """Return the generator of one purpose (0 events, 1 texts, 2 audio) of a clip, independent of the others."""
        return np.random.default_rng((self.seed, SPLITS.index(split), number, purpose))


class Scene(NamedTuple):
    """A planned clip: its kind, its events by rising start, a background last, and its captions."""

    kind: str
    events: list[Event]
    captions: list[str]


def make_scenes(out: Path, settings: Settings, pools: dict[Split, Pool]) -> list[Clip]:
    """Compose scenes in a folder, and return the clips.

    Writes the missing audio files (8 s, 16 kHz, mono, 16 bit), Clotho's tables, and labels.csv (kind and events).
    """
    labels, clips = [], []
    for split, pool in pools.items():
        captions, metadata = [], []
        for number, scene in enumerate(each(plan_split(settings, split, pool), split, "clip"), 1):
            sound = partial(render, settings.rng(split, number, 2), scene.kind, scene.events)
            clip = _write_clip(out, settings, split, number, scene.events, scene.captions, sound)
            names, (links, authors, licences) = ";".join(event.name for event in scene.events), credit(scene.events)
            captions.append((clip.file_name, *scene.captions))
            # A scene is no Freesound sound, even if its parts are.
            metadata.append((clip.file_name, names, "Not found", links, "", authors, licences))
            labels.append((clip.file_name, split, scene.kind, names))
            clips.append(clip)
        header = ["file_name", *(f"caption_{number}" for number in range(1, len(captions[0])))]
        write_table(out / f"clotho_captions_{split}.csv", header, captions)
        write_table(out / f"clotho_metadata_{split}.csv", METADATA, metadata)
    write_table(out / "labels.csv", LABELS, labels)
    return clips


def _write_clip(
    out: Path,
    settings: Settings,
    split: Split,
    number: int,
    events: Sequence[Event | TimedEvent],
    captions: list[str],
    sound: Callable[[], Samples],
) -> Clip:
    """Write the audio of a clip, unless it is there, and return the clip. sound: Makes its samples, in [-1, 1]."""
    path = out / split / f"{settings.name}_{split}_{number:05d}.wav"
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        with writing(path) as file:
            file.write(encoded(np.round(sound() * 32767).astype(np.int16), SAMPLE_RATE, "WAV", "PCM_16"))
    _, authors, licences = credit(events)
    facts = {"seconds": settings.seconds, "licence": licences, "uploader": authors}
    return audio_clip(path.parent, path.name, settings.name, split, captions, **facts)


def plan_split(settings: Settings, split: Split, pool: Pool) -> list[Scene]:
    """Return the plans of a split's clips.

    In a test split no caption repeats, because a ranked CSV identifies a query by its text.
    """
    scenes: list[Scene] = []
    taken: set[str] = set()
    for number in range(1, settings.counts[split] + 1):
        kind = list(KINDS)[(number - 1) % len(KINDS)]
        events = draw_events(settings.rng(split, number, 0), kind, pool)
        names, rng = [event.name for event in events], settings.rng(split, number, 1)
        if settings.captions == "noisy":
            captions = [describe_noisily(rng, names)]
        else:
            held_out = 0.0 if split in TEST_SPLITS else settings.held_out
            captions = describe(rng, kind, names, int(settings.captions), held_out, taken)
        if split in TEST_SPLITS:
            taken.update(captions)
        scenes.append(Scene(kind, events, captions))
    return scenes


def ceiling(folder: Path, split: str) -> float:
    """Return the mAP@10 of a system that knows only the label (kind and events) of each scene; ties are random.

    A caption's own clip is tied with all clips of the split with the same label. With g such clips, ranks 1 .. g are
    equally likely, so the expected AP@10 is (1/g) * sum_{r=1..min(g,10)} 1/r. In an overlap the order of the events
    does not matter. Raises KitError for a folder without labels.csv, and a split without clips.
    """
    groups = Counter[tuple[str, ...]]()
    for _, row in read_table(folder / "labels.csv", LABELS):
        if row["split"] == split:
            names = row["events"].split(";")
            groups[row["kind"], *(sorted(names) if row["kind"] == "overlap" else names)] += 1
    if not groups:
        raise KitError(f"{folder / 'labels.csv'}: no clips in the split {split}; choose another split")
    return sum(sum(1 / rank for rank in range(1, min(size, 10) + 1)) for size in groups.values()) / groups.total()


def make_moments(out: Path, settings: Settings, pools: dict[Split, Pool]) -> list[Clip]:
    """Compose long recordings with moments, and return the recordings.

    Writes the missing audio files (16 kHz, mono, 16 bit) and moments.jsonl.
    """
    n = round(settings.seconds * SAMPLE_RATE)
    clips: list[Clip] = []
    moments: list[Moment] = []
    for split, pool in pools.items():
        for number in each(range(1, settings.counts[split] + 1), split, "recording"):
            events = draw_timeline(settings.rng(split, number, 0), pool, n)
            queries = draw_queries(settings.rng(split, number, 1), settings.held_out, split, events)
            sound = partial(mixed, settings.rng(split, number, 2), events, n)
            clip = _write_clip(out, settings, split, number, events, [text for text, _ in queries], sound)
            clips.append(clip)
            for query, (text, windows) in enumerate(queries, 1):
                qid = f"{PurePath(clip.file_name).stem}_{query}"
                moments.append(Moment(id=qid, text=text, clip=clip.id, windows=windows))
    write_moments(out / "moments.jsonl", moments, clips)
    return clips


def draw_queries(
    rng: np.random.Generator, held_out: float, split: Split, events: Sequence[TimedEvent]
) -> list[tuple[str, list[Window]]]:
    """Draw the queries of a recording: text and all windows of a sound class.

    Classes are taken in the order of their first event. Each gets a query with the probability ASKED, and at least one
    of them gets it.
    """
    windows: dict[str, list[Window]] = {}
    for event in events:
        window = round(event.start / SAMPLE_RATE, 2), round(event.end / SAMPLE_RATE, 2)
        windows.setdefault(event.name, []).append(window)
    asked = rng.random(len(windows)) < ASKED
    if windows and not asked.any():
        asked[int(rng.integers(len(windows)))] = True
    names = np.array(list(windows))[asked].tolist()
    return [(describe_event(rng, name, split, held_out), windows[name]) for name in names]


def claim(out: Path, settings: Settings) -> None:
    """Record the settings of a new folder. Raises KitError for a folder with other settings or content."""
    path, wanted = out / "scenes.json", json.loads(json.dumps(asdict(settings)))
    if not path.is_file():
        if out.is_dir() and any(not entry.name.startswith(".") for entry in out.iterdir()):
            raise KitError(f"{out}: contains files but no scenes.json; choose a new or empty folder")
        write_json(path, wanted)
    begun = dict(read_json(path))
    if changed := [key for key in wanted if begun.get(key) != wanted[key]]:
        raise KitError(f"{out}: was made with another {', '.join(changed)}; choose another folder or delete this one")
    remove_parts(out)


def scenes(
    out: Path,
    *,
    seed: Annotated[int, typer.Option(min=0)],
    development: int | None = None,
    validation: int | None = None,
    evaluation: int | None = None,
    captions: Literal["5", "1", "noisy"] = "5",
    held_out: Annotated[float, typer.Option("--heldout-phrasings", min=0, max=MAX_HELD_OUT)] = 0.0,
    recordings: Path | None = None,
    moments: bool = False,
    name: str = "",
) -> None:
    """Compose a data set of synthetic or recorded sounds.

    It has captions, and is laid out like Clotho.

    Args:
        out: Output folder; run again with the same arguments to complete it.
        seed: Decides all random choices.
        development: Clips; default: 2400, of moments 400.
        validation: Clips; default: 300, of moments 60.
        evaluation: Clips; default: 300, of moments 120.
        captions: Captions per clip; noisy: 1 in Freesound's style.
        held_out: Share of wordings that only evaluation uses. With --moments, validation gets one of its own too.
        recordings: Recordings to compose, in ESC-50's layout: folds 1 to 3 for development, 4 for validation, 5 for
            evaluation.
        moments: Make recordings of 60 s, and queries with the windows of one sound each.
        name: Name of the clips' source, for their ids; default: the folder's.
    """
    usual = (400, 60, 120) if moments else (2400, 300, 300)
    asked = zip(SPLITS, (development, validation, evaluation), usual, strict=True)
    counts = {split: number for split, given, least in asked if (number := least if given is None else given) > 0}
    if not counts:
        raise KitError("no clips are asked for; give one number above 0")
    if captions != "5" and (moments or (captions == "noisy" and held_out)):
        raise KitError(f"--captions {captions} does not work with the other options; leave it out")
    settings = Settings(
        name=check_source(name or out.absolute().name),
        seed=seed,
        counts=counts,
        held_out=held_out,
        captions="" if moments else captions,
        recordings=checksum(table_path(recordings)) if recordings else None,
        seconds=60.0 if moments else SECONDS,
    )
    pools: dict[Split, Pool] = {
        split: read_recordings(recordings, FOLDS[split]) if recordings else dict.fromkeys(CLASSES, ())
        for split in counts
    }
    for split, pool in pools.items():
        if len(pool) < max(KINDS.values()):
            raise KitError(f"{recordings}: the folds of {split} have {len(pool)} categories, 3 are needed")
    claim(out, settings)
    clips = (make_moments if moments else make_scenes)(out, settings, pools)
    write_manifest(out / "manifest.jsonl", clips)
    queries = f", {counted(sum(len(clip.captions) for clip in clips), 'query')}" if moments else ""
    print(f"wrote {out / 'manifest.jsonl'}: {counted(len(clips), 'recording' if moments else 'clip')}{queries}")
