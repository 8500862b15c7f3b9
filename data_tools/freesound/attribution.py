"""What a folder of fetched audio says of itself: the manifest, whom to thank for each file, hours by licence."""

from collections import defaultdict
from collections.abc import Sequence
from urllib.parse import quote

from data_tools.files import write_table
from data_tools.freesound.client import SITE
from data_tools.freesound.folder import Folder
from data_tools.freesound.selection import Chosen
from data_tools.manifest import audio_clip, write_manifest

MANIFEST, ATTRIBUTION, LICENCES, LOST = "manifest.jsonl", "ATTRIBUTION.csv", "licences.csv", "lost.csv"


def write_results(folder: Folder, sounds: Sequence[Chosen]) -> int:
    """Write the four tables of what was chosen and is there, the manifest last; print what they hold. Returns 0, or 1
    when nothing is there."""
    stored, lost = folder.files(), folder.lost()
    there = [sound for sound in sounds if sound.id in stored]
    rows = [(sound.id, lost[sound.id]) for sound in sounds if sound.id in lost]
    write_table(folder.path / LOST, ["freesound_id", "why"], rows)
    print(f"{len(there):>8}  files are there; {len(rows)} could not be had ({LOST} says why)")
    if other := len(stored) - len(there):
        print(f"{other:>8}  files of earlier runs stay in {folder.path} and are not in the manifest")
    if not there:
        return 1
    thanks = [
        (f"{sound.id}.flac", sound.title, sound.uploader, sound.licence, page(sound), stored[sound.id].sha256)
        for sound in there
    ]
    header = ["file_name", "title", "uploader", "licence", "page", "sha256"]
    write_table(folder.path / ATTRIBUTION, header, thanks)
    licences = defaultdict(list)
    for sound in there:
        licences[sound.licence].append(stored[sound.id].seconds)
    summary = [(licence, len(seconds), round(sum(seconds) / 3600, 3)) for licence, seconds in sorted(licences.items())]
    write_table(folder.path / LICENCES, ["licence", "files", "hours"], summary)
    for licence, count, hours in summary:
        print(f"{count:>8}  {hours:.2f} hours under {licence}")
    clips = []
    for sound in there:
        name, seconds = f"{sound.id}.flac", stored[sound.id].seconds
        facts = str(sound.id), sound.licence or None, sound.uploader or None
        clips.append(audio_clip(folder.path, name, "freesound", "train", [sound.caption], seconds, *facts))
    write_manifest(folder.path / MANIFEST, clips)
    print(f"wrote {folder.path / MANIFEST}; name the uploaders as {ATTRIBUTION} does wherever the audio goes")
    return 0


def page(sound: Chosen) -> str:
    """Its page on Freesound."""
    return f"{SITE}/people/{quote(sound.uploader, safe='')}/sounds/{sound.id}/"
