"""Fetch the sounds whose descriptions score best.

It writes FLAC files, a manifest and ATTRIBUTION.csv.

Files are named by ids, so that no title can lead to another path. A file that is there is not fetched again.
"""

import os
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from data_tools.audio import encoded, read_audio
from data_tools.cli import counted, each
from data_tools.datasets.download import transfer
from data_tools.errors import AudioError, KitError
from data_tools.exclusion import Exclusions, read_exclusions
from data_tools.files import lock_of, remove_parts, writing
from data_tools.freesound.api import SITE, Api, read_access
from data_tools.freesound.store import PAGE_SIZE, Store, open_store
from data_tools.manifest import audio_clip, write_manifest
from data_tools.tables import read_table, write_table

# Licences by the address of their deed; Freesound's four, of any version.
LICENCES = {
    "cc0": "/publicdomain/zero/",
    "by": "/licenses/by/",
    "by-nc": "/licenses/by-nc/",
    "sampling+": "/licenses/sampling+/",
}
# Uploaders' choices about generative training; the last one covers every use of that kind.
PREFERENCES = ("no-additional-preferences", "open-source-models", "noncommercial-open-source-models", "no-gen-ai")
TOLERANCE = 0.5  # seconds by which a preview may differ from the length that Freesound states
WORKERS = 4

Scored = tuple[float, int, str]  # score, Freesound id and text of a description


class Criteria(NamedTuple):
    """Rules for the sounds to fetch.

    Attributes:
        threshold: Scores must be above this value.
        seconds: Shortest and longest length, both included.
        licences: Allowed licences.
        preferences: Allowed choices of uploaders on AI training. A sound without a choice is not fetched.
    """

    threshold: float
    seconds: tuple[float, float]
    licences: Collection[str]
    preferences: Collection[str]


class Sound(NamedTuple):
    """A sound of the store, as Freesound describes it. caption: Its cleaned description."""

    caption: str
    id: int
    title: str
    uploader: str
    licence: str
    seconds: float | None
    preview: str | None
    preference: str | None

    def file(self, folder: Path) -> Path:
        return folder / f"{self.id}.flac"


# Of the store, for the attributes of Sound after `caption`.
_COLUMNS = "id, ifnull(name, ''), ifnull(username, ''), ifnull(license, ''), duration, preview, gen_ai_preference"


def read_scores(path: Path) -> list[Scored]:
    """Return the score, id and text of each row, best first.

    Raises KitError for bad rows.
    """
    rows: dict[int, Scored] = {}
    for line, row in read_table(path, ["freesound_id", "score", "text"]):
        try:
            number, score = int(row["freesound_id"]), float(row["score"])
        except ValueError:
            number, score = 0, -1.0
        if number in rows or not 0 <= score <= 1:
            raise KitError(f"{path}, line {line}: a bad or repeated id, or no score from 0 to 1; run classify again")
        rows[number] = (score, number, row["text"])
    return sorted(rows.values(), key=lambda row: (-row[0], row[1]))


def select(
    store: Store,
    scores: Sequence[Scored],
    criteria: Criteria,
    exclusions: Exclusions,
    gone: Collection[int] = (),
) -> tuple[list[Sound], Counter[str]]:
    """Return the sounds that the rules allow, best first.

    Also returns the numbers of refused ones by reason.
    """
    known = {row[0]: row for row in store.sounds(_COLUMNS) if row[0] not in gone}
    low, high = criteria.seconds
    chosen, refused = [], Counter[str]()
    for score, number, caption in scores:
        sound = Sound(caption, *known.get(number, (number, "", "", "", None, None, None)))
        reasons = {
            "score": score <= criteria.threshold or not caption.strip(),
            "not in the store, or gone from Freesound": number not in known,
            "on an exclusion list": str(number) in exclusions,
            "length": not low <= (sound.seconds or 0) <= high,
            "licence": not any(LICENCES[name] in sound.licence for name in criteria.licences),
            "the uploader's AI preference": sound.preference not in criteria.preferences,
            "no preview": not sound.preview,
        }
        if reason := next((reason for reason, holds in reasons.items() if holds), None):
            refused[reason] += 1
        else:
            chosen.append(sound)
    return chosen, refused


def choose_fresh(
    api: Api,
    store: Store,
    scores: Sequence[Scored],
    criteria: Criteria,
    exclusions: Exclusions,
    limit: int | None,
    out: Path,
) -> list[Sound]:
    """Choose sounds by what the API states now.

    Licences, preferences and lengths may have changed since the crawl. Sounds that drop out are replaced from further
    down the list. Sounds whose file is there are not asked for again.
    """
    gone, fresh = set[int](), set[int]()
    while True:
        chosen, refused = select(store, scores, criteria, exclusions, gone)
        stale = [one.id for one in chosen[:limit] if one.id not in fresh and not one.file(out).is_file()]
        if not stale:
            for reason, count in refused.most_common():
                print(f"{count:>8}  not fetched: {reason}")
            return chosen[:limit]
        for start in range(0, len(stale), PAGE_SIZE):
            part = stale[start : start + PAGE_SIZE]
            found = api.sounds(part)
            store.save(found)
            gone.update(set(part) - {sound["id"] for sound in found})
        fresh.update(stale)


def fetch_sounds(sounds: Sequence[Sound], out: Path, rate: int) -> dict[int, str]:
    """Download the sounds whose file is missing.

    Returns why some could not be fetched, by id.
    """
    lost: dict[int, str] = {}

    def work(sound: Sound) -> None:
        part = out / f".{sound.id}.{os.getpid()}.part"
        try:
            transfer(sound.preview or "", part)  # without the key
            wave = read_audio(part, rate)
            if abs(len(wave) / rate - (sound.seconds or 0)) > TOLERANCE:
                raise AudioError(f"the preview lasts {len(wave) / rate:.2f} s, not {sound.seconds} s as stated")
            with writing(sound.file(out)) as file:
                file.write(encoded(wave, rate, "FLAC", "PCM_16"))
        except KitError as error:
            lost[sound.id] = str(error).removeprefix(f"{part}: ")
        finally:
            part.unlink(missing_ok=True)

    missing = [sound for sound in sounds if not sound.file(out).is_file()]
    with ThreadPoolExecutor(WORKERS) as pool:
        for _ in each(pool.map(work, missing), "fetch", "sound", len(missing)):
            pass
    return lost


def fetch(
    store: Path,
    *,
    scores: Path,
    exclude: list[Path],
    out: Path,
    threshold: float = 0.2,
    seconds: tuple[float, float] = (3.0, 120.0),
    licences: list[str] | None = None,
    ai_preferences: list[str] | None = None,
    limit: Annotated[int | None, typer.Option(min=1)] = None,
    rate: Annotated[int, typer.Option(min=1, max=65_535)] = 44100,  # above, FLAC takes only some
) -> None:
    """Fetch the sounds whose descriptions score best.

    Args:
        store: SQLite file made by crawl.
        scores: The file scores.csv made by classify.
        exclude: A list of sounds never to fetch: CSV with sound_id or id, WavCaps' JSON, or a manifest; repeat.
            `none` for no list.
        out: Folder for the audio, the manifest and the tables.
        threshold: Border, which the score must exceed; as in the paper "Take it easy".
        seconds: Shortest and longest sound; as in that paper.
        licences: An allowed one of cc0, by, by-nc and sampling+; repeat. Default: all.
        ai_preferences: An allowed choice of uploaders on AI training, of no-additional-preferences, open-source-models,
            noncommercial-open-source-models and no-gen-ai; repeat. Default: all but no-gen-ai.
        limit: Number of sounds, best scores first; default: all.
        rate: Sample rate of the FLAC files in Hz.
    """
    criteria = Criteria(threshold, seconds, licences or tuple(LICENCES), ai_preferences or PREFERENCES[:-1])
    for name in (*set(criteria.licences).difference(LICENCES), *set(criteria.preferences).difference(PREFERENCES)):
        raise KitError(f"{name}: no such licence or AI preference; see lbar data fetch --help")
    exclusions = read_exclusions([path for path in exclude if str(path) != "none"])
    read_access()
    scored = read_scores(scores)
    with open_store(store) as opened:
        out.mkdir(parents=True, exist_ok=True)
        with lock_of(out):
            remove_parts(out)  # of a killed call
            api = Api(opened)
            sounds = choose_fresh(api, opened, scored, criteria, exclusions, limit, out)
            lost = fetch_sounds(sounds, out, rate)
    write_table(out / "lost.csv", ["freesound_id", "why"], lost.items())
    changes = "preview (MP3), resampled, mono, as FLAC of 16 bit"  # as the licences require
    table, clips = [], []
    for one in (sound for sound in sounds if sound.id not in lost):
        name = one.file(out).name
        table.append((name, one.title, one.uploader, one.licence, f"{SITE}/s/{one.id}/", changes))
        facts = {"freesound_id": str(one.id), "licence": one.licence, "uploader": one.uploader}
        clips.append(audio_clip(out, name, "freesound", "train", [one.caption], **facts))
    if not clips:
        raise KitError(f"{out}: no sound could be fetched ({counted(len(lost), 'sound')} in lost.csv)")
    write_table(out / "ATTRIBUTION.csv", ["file_name", "title", "uploader", "licence", "page", "changes"], table)
    write_manifest(out / "manifest.jsonl", clips)
    missing = f"; {counted(len(lost), 'sound')} could not be fetched (lost.csv)" if lost else ""
    print(f"wrote {out / 'manifest.jsonl'}: {counted(len(clips), 'clip')}{missing}; credit them as in ATTRIBUTION.csv")
