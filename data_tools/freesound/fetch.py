"""Verb fetch: download chosen sounds.

Fetches the audio of chosen sounds: decodes it, stores it as FLAC, and writes a manifest and attributions.
"""

import argparse
import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import fields
from functools import partial
from pathlib import Path

from data_tools.audio import encoded, read_audio
from data_tools.cli import Progress, progress
from data_tools.errors import AudioError, DataError
from data_tools.files import replacing
from data_tools.freesound.access import TOKEN, add_connection_options, check_bounds, read_access
from data_tools.freesound.audio_folder import DATABASE, Folder, StoredFile, write_results
from data_tools.freesound.client import Client, LostError
from data_tools.freesound.completeness import look_up
from data_tools.freesound.selection import (
    LICENCES,
    NON_COMMERCIAL,
    PREFERENCES,
    Chosen,
    Criteria,
    Selection,
    select,
)
from data_tools.freesound.store import Store, open_store
from data_tools.leakage.exclusion import read_exclusions
from data_tools.locks import lock_of

ATTEMPTS = 3  # at a file that arrives complete but cannot be used
PREVIEW_BYTES = 64_000  # per second, and once for headers; Freesound's best previews have 24,000
TOLERANCE = 0.5  # allowed difference in seconds from Freesound's duration: MP3 adds padding
MAX_SOUNDS = 1_000_000_000  # per command
NONE = Path("none")  # option value for no exclusion list


async def fetch_all(client: Client, folder: Folder, sounds: list[Chosen], workers: int) -> None:
    """Fetch the sounds that are not in the folder; if one cannot be fetched, record the reason and continue."""
    missing = [sound for sound in sounds if sound.id not in folder.files]
    remaining = iter(missing)

    async def work(bar: Progress) -> None:
        """Fetch sounds from the list that all workers share, until it is empty."""
        for sound in remaining:
            try:
                await _fetch_sound(client, folder, sound)
            except (LostError, AudioError) as error:
                folder.record_failure(sound.id, str(error))
            finally:
                folder.part_path(sound.id).unlink(missing_ok=True)
            bar.advance()

    with progress("fetching", len(sounds), "file", len(sounds) - len(missing)) as bar:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(work(bar))
        except BaseExceptionGroup as several:  # one error is enough to stop
            raise several.exceptions[0] from None


async def _fetch_sound(client: Client, folder: Folder, sound: Chosen) -> None:
    """Download a sound, convert it to FLAC, and record it in the folder; repeat if the audio is damaged."""
    part = folder.part_path(sound.id)
    for attempt in range(1, ATTEMPTS + 1):
        if folder.originals:
            size = await client.download_original(sound.id, part, sound.bytes)
        else:
            size = await client.download_preview(sound.preview, part, round(PREVIEW_BYTES * (1 + sound.seconds)))
        try:
            if folder.originals and sound.bytes not in (None, size):
                raise AudioError(f"received {size} bytes instead of {sound.bytes}")
            stored = await asyncio.to_thread(_write_flac, part, folder, sound)
        except AudioError as error:
            if attempt == ATTEMPTS:
                reason = str(error).removeprefix(f"{part}: ")
                raise AudioError(reason) from None
        else:
            folder.add_file(stored)
            return


def _write_flac(part: Path, folder: Folder, sound: Chosen) -> StoredFile:
    """Convert a downloaded file to FLAC (mono, 16 bit) in the folder; return the sound's id, file's sha256, and length.

    Raises AudioError if the length differs from Freesound's.
    """
    samples = read_audio(part, folder.rate)
    seconds = len(samples) / folder.rate
    if abs(seconds - sound.seconds) > TOLERANCE:
        raise AudioError(f"the audio is {seconds:.2f} s long, but Freesound states {sound.seconds:.2f} s")
    flac = encoded(samples, folder.rate, "FLAC", "PCM_16")
    with replacing(folder.flac_path(sound.id)) as temporary:
        temporary.write_bytes(flac)
    return StoredFile(sound.id, hashlib.sha256(flac).hexdigest(), seconds)


def _print_selection(selection: Selection) -> None:
    """Print the number of chosen sounds, and of refused ones by reason."""
    hours = sum(sound.seconds for sound in selection.chosen) / 3600
    print(f"{len(selection.chosen):>8}  sounds to fetch, {hours:.1f} hours")
    for reason, count in selection.refused.most_common():
        print(f"{count:>8}  not fetched: {reason}")
    marks = [LICENCES[name] for name in NON_COMMERCIAL]
    if restricted := sum(any(mark in sound.licence for mark in marks) for sound in selection.chosen):
        hint = "to leave out these sounds, add --licences cc0 by"
        licences = ", ".join(NON_COMMERCIAL)
        print(f"{restricted:>8}  of the sounds to fetch are for non-commercial use only ({licences}); {hint}")
    for sound_id, lists in list(selection.excluded.items())[:10]:
        print(f"          sound {sound_id} is on the exclusion list {', '.join(lists)}")


async def _select_and_fetch(arguments: argparse.Namespace, store: Store) -> int:
    """Select sounds by the options, fetch them, and write the tables; return the exit status."""
    from data_tools.freesound.http import connect

    criteria = Criteria(**{one.name: getattr(arguments, one.name) for one in fields(Criteria)})
    exclusions = read_exclusions([] if arguments.exclude == [NONE] else arguments.exclude)
    selection = select(store, arguments.scores, criteria, exclusions)
    selection = selection._replace(chosen=selection.chosen[: arguments.limit])
    _print_selection(selection)
    if not selection.chosen:
        raise DataError(f"{arguments.scores}: no sound is left to fetch; lower --threshold or relax the other options")
    if arguments.dry_run:
        return 0
    token = read_access(arguments).token  # raises its errors before a folder is created
    if arguments.originals and token is None:
        raise DataError(f"--originals needs an OAuth2 access token; set {TOKEN}, or give a file by --token-file")
    choose = partial(select, store, arguments.scores, criteria, exclusions)
    with (
        lock_of(arguments.out / DATABASE),
        closing(Folder(arguments.out, arguments.rate, arguments.originals)) as folder,
    ):
        async with connect(arguments, store) as client:
            chosen = await _choose_again(client, store, [sound.id for sound in selection.chosen], choose)
            await fetch_all(client, folder, chosen, arguments.workers)
        return write_results(folder, chosen)


async def _choose_again(
    client: Client, store: Store, ids: Sequence[int], choose: Callable[[], Selection]
) -> list[Chosen]:
    """Return the sounds with the given ids that the rules (`choose`) still allow after reading their metadata again."""
    looked_up = await look_up(client, store, ids)
    found_ids = {sound_id for sound_id, sound in looked_up.items() if sound}
    chosen = [sound for sound in choose().chosen if sound.id in found_ids]
    if missing := len(ids) - len(found_ids):
        print(
            f"{missing:>8}  chosen sounds are not fetched: Freesound's search no longer finds them, or fails for them"
        )
    if changed := len(found_ids) - len(chosen):
        print(f"{changed:>8}  chosen sounds are not fetched: their new licence, AI preference or length is not allowed")
    return chosen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `fetch` to its parser."""
    add = parser.add_argument
    add("store", type=Path, metavar="STORE", help="SQLite file made by crawl")
    add("--scores", type=Path, required=True, help="the file scores.csv made by classify")
    threshold = 'fetch only sounds with a score above this value (default: %(default)s, as in the paper "Take it easy")'
    add("--threshold", type=float, default=0.2, help=threshold)
    lists = "lists of sounds never to fetch: CSV with sound_id or id, WavCaps' JSON, or a manifest; `none` for no list"
    add("--exclude", type=Path, nargs="+", required=True, metavar="LIST", help=lists)
    add("--out", type=Path, required=True, metavar="FOLDER", help="output folder for the audio and its manifest")
    add("--rate", type=int, default=44_100, help="sample rate of the FLAC files, in Hz (default: %(default)s)")
    add("--limit", type=int, default=MAX_SOUNDS, help="maximum number of sounds, best scores first (default: all)")
    add("--originals", action="store_true", help="fetch the uploaders' files instead of previews (128 kbit/s MP3)")
    token = f"file of mode 600 with the token, or with JSON to renew it (default: the environment variable {TOKEN})"
    add("--token-file", type=Path, help=token)
    add("--dry-run", action="store_true", help="print what would be fetched, and fetch nothing")
    _add_rules(parser)
    add_connection_options(parser)


def _add_rules(parser: argparse.ArgumentParser) -> None:
    """Add one option per field of Criteria, with the same name."""
    add = parser.add_argument
    bounds = 'range of lengths in seconds (default: 3 120, as in the paper "Take it easy")'
    add("--seconds", type=float, nargs=2, default=Criteria.seconds, metavar=("MIN", "MAX"), help=bounds)
    add(
        "--licences",
        nargs="+",
        choices=LICENCES,
        default=Criteria.licences,
        help="allowed licences of sounds (default: all)",
    )
    add(
        "--ai-preferences",
        nargs="+",
        choices=PREFERENCES,
        default=Criteria.preferences,
        dest="preferences",
        metavar="PREFERENCE",
        help=f"allowed choices of uploaders on AI training: {', '.join(PREFERENCES)} (default: all but the last)",
    )
    add("--no-explicit", action="store_false", dest="explicit", help="leave out sounds that are marked as explicit")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `fetch`: fetch the audio of the best descriptions as FLAC; return the exit status."""
    if not 0 <= arguments.seconds[0] <= arguments.seconds[1]:
        given = " ".join(f"{value:g}" for value in arguments.seconds)
        raise DataError(f"--seconds {given}: MIN must be 0 or more, and not above MAX")
    check_bounds(arguments, limit=(1, MAX_SOUNDS), rate=(4000, 192_000))
    with open_store(arguments.store) as store:
        return asyncio.run(_select_and_fetch(arguments, store))
