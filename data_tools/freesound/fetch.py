"""Fetch the sounds whose descriptions score best, as FLAC with a manifest and attributions.

Files are named by ids, so that no title can lead to another path. A file that is there is not fetched again.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from data_tools.audio import encoded, read_audio, readable_seconds, sound_of
from data_tools.cli import counted, progress
from data_tools.errors import AudioError, DataError
from data_tools.exclusion import Exclusions, read_exclusions
from data_tools.files import lock_of, remove_parts, require_file, writing
from data_tools.freesound.api import PAGE_SIZE, SITE, Api, Limits, LostError, read_access, session
from data_tools.freesound.store import Store, open_store
from data_tools.manifest import audio_clip, write_manifest
from data_tools.names import is_freesound_id, plain_id
from data_tools.tables import read_table, write_table

# Licences by the address of their deed; Freesound's four, of any version.
LICENCES = {
    "cc0": "/publicdomain/zero/",
    "by": "/licenses/by/",
    "by-nc": "/licenses/by-nc/",
    "sampling+": "/licenses/sampling+/",
}
# Uploaders' choices about generative training; the last one covers every use of that kind.
PREFERENCES = (*("no-additional-preferences", "open-source-models", "noncommercial-open-source-models"), "no-gen-ai")
TOLERANCE = 0.5  # seconds by which a preview may differ from the length that Freesound states
WORKERS = 4


class Criteria(NamedTuple):
    """Rules for the sounds to fetch; the defaults are those of "Take it easy" (2022).

    Attributes:
        threshold: Scores must be above this value.
        seconds: Shortest and longest length, both included.
        licences: Allowed licences, keys of LICENCES.
        preferences: Allowed choices of uploaders on AI training. A sound without a choice is not fetched.
    """

    threshold: float = 0.2
    seconds: tuple[float, float] = (3.0, 120.0)
    licences: Collection[str] = tuple(LICENCES)
    preferences: Collection[str] = PREFERENCES[:-1]


class Chosen(NamedTuple):
    """A sound to fetch. caption: Its cleaned description. seconds: As Freesound states it."""

    id: int
    caption: str
    title: str
    uploader: str
    licence: str
    seconds: float
    preview: str


def read_scores(path: Path) -> list[tuple[float, int, str]]:
    """Return the score, id and text of each row of scores.csv, best score first. Raises DataError for bad rows."""
    require_file(path, "make this file with lbar data classify")
    rows: dict[int, tuple[float, int, str]] = {}
    for line, row in read_table(path, ["freesound_id", "score", "text"]):
        name = row["freesound_id"]
        try:
            number, score = int(plain_id(name)) if is_freesound_id(name) else 0, float(row["score"])
        except ValueError:
            number, score = 0, -1.0
        if not number or number in rows or not 0 <= score <= 1:
            raise DataError(f"{path}, line {line}: a bad or repeated id, or no score from 0 to 1; run classify again")
        rows[number] = (score, number, row["text"])
    return sorted(rows.values(), key=lambda row: (-row[0], row[1]))


def select(
    store: Store, scores: Sequence[tuple[float, int, str]], criteria: Criteria, exclusions: Exclusions
) -> tuple[list[Chosen], Counter[str]]:
    """Return the sounds that the rules allow, best score first, and the numbers of refused ones by reason."""
    columns = "id, name, username, license, duration, preview, gen_ai_preference"
    known = {row[0]: row[1:] for row in store.sounds(columns, "NOT absent")}
    low, high = criteria.seconds
    chosen, refused = [], Counter[str]()
    for score, number, caption in scores:
        if score <= criteria.threshold or not caption.strip():
            refused["score"] += 1
            continue
        if number not in known:
            refused["not in the store, or gone from Freesound"] += 1
            continue
        title, uploader, licence, seconds, preview, preference = known[number]
        reasons = {
            "on an exclusion list": bool(exclusions.lists(str(number))),
            "length": not low <= (seconds or 0) <= high,
            "licence": not any(LICENCES[name] in (licence or "") for name in criteria.licences),
            "the uploader's AI preference": preference not in criteria.preferences,
            "no preview": not preview,
        }
        if reason := next((reason for reason, holds in reasons.items() if holds), None):
            refused[reason] += 1
        else:
            chosen.append(Chosen(number, caption, title or "", uploader or "", licence, seconds, preview))
    return chosen, refused


async def fetch_sounds(api: Api, sounds: Sequence[Chosen], out: Path, rate: int) -> dict[int, str]:
    """Download the sounds whose file is missing; return why some could not be fetched, by id."""
    lost: dict[int, str] = {}
    missing = iter([sound for sound in sounds if not (out / f"{sound.id}.flac").is_file()])
    done = sum((out / f"{sound.id}.flac").is_file() for sound in sounds)
    with progress("fetch", len(sounds), "sound", done) as bar:

        async def work() -> None:
            for sound in missing:  # shared by all workers
                part = out / f".{sound.id}.mp3"
                try:
                    await api.download(sound.preview, part)
                    await asyncio.to_thread(_convert, part, out / f"{sound.id}.flac", sound.seconds, rate)
                except (LostError, AudioError) as error:
                    lost[sound.id] = str(error).removeprefix(f"{part}: ")
                finally:
                    part.unlink(missing_ok=True)
                bar.advance()

        await asyncio.gather(*(work() for _ in range(WORKERS)))
    return lost


def _convert(part: Path, path: Path, seconds: float, rate: int) -> None:
    """Convert a preview to FLAC. Raises AudioError for another length than Freesound states."""
    wave = read_audio(part, rate)
    if abs(len(wave) / rate - seconds) > TOLERANCE:
        raise AudioError(f"the preview lasts {len(wave) / rate:.2f} s, not {seconds:.2f} s as stated")
    with writing(path) as file:
        file.write(encoded(wave, rate, "FLAC", "PCM_16"))


def _require_rate(out: Path, rate: int) -> None:
    """Raise DataError if a folder has files of another sample rate."""
    for path in sorted(out.glob("*.flac"))[:1]:
        if (found := sound_of(path).rate) != rate:
            raise DataError(f"{out}: has files of {found} Hz; use --rate {found}, or another folder")


async def choose_fresh(
    api: Api, store: Store, scores: Path, criteria: Criteria, exclusions: Exclusions, limit: int | None, out: Path
) -> tuple[list[Chosen], Counter[str]]:
    """Choose sounds by licences, preferences and lengths that the API states now, not those of the crawl.

    Sounds that drop out are replaced from further down the list. Sounds whose file is there are not asked for again.
    """
    rows, fresh = read_scores(scores), {int(path.stem) for path in out.glob("*.flac") if path.stem.isdecimal()}
    while True:
        chosen, refused = select(store, rows, criteria, exclusions)
        stale = [sound.id for sound in chosen[:limit] if sound.id not in fresh]
        if not stale:
            return chosen[:limit], refused
        for start in range(0, len(stale), PAGE_SIZE):
            part = stale[start : start + PAGE_SIZE]
            found, unread = await api.sounds(part)
            store.save(part, found, unread)
        fresh.update(stale)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `fetch` to its parser."""
    add, rules = parser.add_argument, Criteria()
    add("store", type=Path, metavar="STORE", help="SQLite file made by crawl")
    add("--scores", type=Path, required=True, help="the file scores.csv made by classify")
    lists = "lists of sounds never to fetch: CSV with sound_id or id, WavCaps' JSON, or a manifest; `none` for no list"
    add("--exclude", type=Path, nargs="+", required=True, metavar="LIST", help=lists)
    add("--out", type=Path, required=True, metavar="FOLDER", help="folder for the audio, the manifest and the tables")
    above = 'fetch only sounds with a score above this value (default: 0.2, as in the paper "Take it easy")'
    add("--threshold", type=float, default=rules.threshold, help=above)
    bounds = "shortest and longest sound in seconds (default: 3 120, as in that paper)"
    add("--seconds", type=float, nargs=2, default=rules.seconds, metavar=("MIN", "MAX"), help=bounds)
    add("--licences", nargs="+", choices=LICENCES, default=rules.licences, help="allowed licences (default: all)")
    allowed = f"allowed choices of uploaders on AI training: {', '.join(PREFERENCES)} (default: all but the last)"
    add("--ai-preferences", nargs="+", choices=PREFERENCES, default=rules.preferences, metavar="CHOICE", help=allowed)
    add("--limit", type=int, help="number of sounds, best scores first (default: all)")
    add("--rate", type=int, default=44_100, help="sample rate of the FLAC files in Hz (default: 44100)")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `fetch`: fetch the audio of the best descriptions; return the exit status."""
    low, high = arguments.seconds
    if not 0 <= low <= high or (arguments.limit is not None and arguments.limit < 1):
        raise DataError("--seconds needs MIN of 0 or more, and not above MAX; --limit needs 1 or more")
    criteria = Criteria(arguments.threshold, (low, high), arguments.licences, arguments.ai_preferences)
    exclusions = read_exclusions([path for path in arguments.exclude if str(path) != "none"])
    out: Path = arguments.out

    async def work(store: Store) -> tuple[list[Chosen], dict[int, str]]:
        async with session() as connection:
            api = Api(connection, Limits(store.database))
            sounds, refused = await choose_fresh(
                api, store, arguments.scores, criteria, exclusions, arguments.limit, out
            )
            for reason, count in refused.most_common():
                print(f"{count:>8}  not fetched: {reason}")
            return sounds, await fetch_sounds(api, sounds, out, arguments.rate)

    read_access()
    read_scores(arguments.scores)
    with open_store(arguments.store) as store:
        out.mkdir(parents=True, exist_ok=True)
        with lock_of(out):
            _require_rate(out, arguments.rate)
            remove_parts(out)  # of a killed call
            for preview in out.glob(".*.mp3"):
                preview.unlink()
            sounds, lost = asyncio.run(work(store))
    write_table(out / "lost.csv", ["freesound_id", "why"], [(str(number), why) for number, why in lost.items()])
    present = [sound for sound in sounds if sound.id not in lost]
    if not present:
        raise DataError(f"{out}: no sound could be fetched ({counted(len(lost), 'sound')} in lost.csv)")
    header = ["file_name", "title", "uploader", "licence", "page", "changes"]
    changes = f"preview (MP3), mono, {arguments.rate} Hz, as FLAC of 16 bit"  # as the licences require
    table = [
        (f"{one.id}.flac", one.title, one.uploader, one.licence, f"{SITE}/s/{one.id}/", changes) for one in present
    ]
    write_table(out / "ATTRIBUTION.csv", header, table)
    clips = []
    for one in present:
        name, facts = f"{one.id}.flac", (str(one.id), one.licence, one.uploader)
        clips.append(audio_clip(out, name, "freesound", "train", [one.caption], readable_seconds(out / name), *facts))
    write_manifest(out / "manifest.jsonl", clips)
    missing = f"; {counted(len(lost), 'sound')} could not be fetched (lost.csv)" if lost else ""
    print(
        f"wrote {out / 'manifest.jsonl'}: {counted(len(present), 'clip')}{missing}; credit them as in ATTRIBUTION.csv"
    )
    return 0
