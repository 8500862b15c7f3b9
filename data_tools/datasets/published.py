"""Addresses and checksums of published data sets.

What `get` fetches. Sources of addresses and MD5s: github.com/Labbeti/aac-datasets 0.7.0, datasets/functional/clotho.py
and audiocaps.py. Files without an MD5 there are checked for damage only.
"""

from collections.abc import Mapping
from typing import NamedTuple


class PublishedFile(NamedTuple):
    """A published file. md5: "" if it is not known. An archive's content is put into the data set's folder."""

    address: str
    md5: str = ""

    @property
    def name(self) -> str:
        """Name of the file in the data set's folder."""
        return self.address.rpartition("/")[2]

    def address_at(self, mirror: str | None) -> str:
        """Return the address of the file below a mirror's address; None: as published."""
        return f"{mirror.rstrip('/')}/{self.name}" if mirror else self.address

    @property
    def is_archive(self) -> bool:
        """Whether the file must be unpacked."""
        return self.name.endswith((".7z", ".zip"))


class PublishedSet(NamedTuple):
    """A published data set.

    licence: With the terms of use. make: Command of data_tools that writes the manifest from the folder, with {folder}
    and {manifest}; "" for files without clips. steps: Instructions for parts without a public address.
    """

    licence: str
    files: tuple[PublishedFile, ...]
    make: str = ""
    steps: tuple[str, ...] = ()


def _files(folder: str, checksums: Mapping[str, str]) -> tuple[PublishedFile, ...]:
    """Return the files at the address of a folder. checksums: Dict from a file's name to its MD5, or ""."""
    return tuple(PublishedFile(f"{folder}/{name}", md5) for name, md5 in checksums.items())


_CLOTHO = "https://zenodo.org/record/4783391/files"
_BLIND = "https://zenodo.org/record/6590983/files"
_AUDIOCAPS = "https://raw.githubusercontent.com/cdjkim/audiocaps/master/dataset"
_LISTS = "https://raw.githubusercontent.com/Labbeti/aac-datasets/main/data/wavcaps"

SETS = {
    "clotho": PublishedSet(
        "Clotho v2.1: audio under each file's Freesound licence (some non-commercial), captions for non-commercial "
        "research (Tampere University licence)",
        _files(
            _CLOTHO,
            {
                "clotho_captions_development.csv": "d4090b39ce9f2491908eebf4d5b09bae",
                "clotho_captions_validation.csv": "5879e023032b22a2c930aaa0528bead4",
                "clotho_captions_evaluation.csv": "1b16b9e57cf7bdb7f13a13802aeb57e2",
                "clotho_metadata_development.csv": "170d20935ecfdf161ce1bb154118cda5",
                "clotho_metadata_validation.csv": "2e010427c56b1ce6008b0f03f41048ce",
                "clotho_metadata_evaluation.csv": "13946f054d4e1bf48079813aac61bf77",
                "clotho_audio_evaluation.7z": "4569624ccadf96223f19cb59fe4f849f",
                "clotho_audio_validation.7z": "7dba730be08bada48bd15dc4e668df59",
                "clotho_audio_development.7z": "c8b05bc7acdb13895bb3c6a29608667e",
            },
        ),
        "clotho {folder} --out {manifest}",
    ),
    "clotho_blind": PublishedSet(
        "blind set of 2022 to 2024: audio under each file's Freesound licence, captions for non-commercial research; "
        "not for the development of methods",
        _files(
            _BLIND,
            {
                "retrieval_captions.csv": "f9e810118be00c64ea8cd7557816d4fe",
                "retrieval_audio_metadata.csv": "1301db07acbf1e4fabc467eb54e0d353",
                "retrieval_audio.7z": "24102395fd757c462421a483fba5c407",
            },
        ),
        "blind {folder}/test --out {manifest}",
    ),
    "exclusion_lists": PublishedSet(
        "lists of WavCaps' sounds that are in Clotho or AudioCaps too (MIT, aac-datasets)",
        _files(
            _LISTS,
            {
                "blacklist_clotho.full.csv": "",
                "blacklist_audiocaps.full.csv": "",
            },
        ),
        steps=(
            "the list of 2025, dcase2025_task6_excluded_freesound_ids.csv: copy it from resources/ of "
            "github.com/CPJKU/dcase2025_task6_baseline into {folder}",
        ),
    ),
    "audiocaps": PublishedSet(
        "AudioCaps v1: captions for academic use only; the audio is 10 s of YouTube videos, without a licence",
        _files(_AUDIOCAPS, {"train.csv": "", "val.csv": "", "test.csv": ""}),
        steps=(
            "audio: get the 10 s from start_time of each youtube_id, and put them at "
            "{folder}/<split>/<youtube_id>_<start_time>.wav (also .flac or .mp3); or read a copy of the data set "
            "OpenSound/AudioCaps by the verb hub",
            "python -m data_tools audiocaps {folder} --out {manifest}",
        ),
    ),
    "wavcaps": PublishedSet(
        "WavCaps: for academic use only; each sound has the licence of its source",
        (),
        steps=(
            "captions: copy fsd_final.json, bbc_final.json, sb_final.json and as_final.json from the folders of "
            "json_files/ in the data set cvssp/WavCaps on the Hugging Face hub into {folder}",
            "audio, 157 GB as MP3 at 32 kHz: fetch WavCaps_mp3.7z.001 to .015, whose addresses are in "
            "download_datasets.py of github.com/CPJKU/dcase2025_task6_baseline, then: 7z x WavCaps_mp3.7z.001; name "
            "the folders of the four parts {folder}/freesound, bbc, soundbible and audioset",
            "or 941 GB as FLAC, without unpacking: copy Zip_files/ of cvssp/WavCaps into {folder}, then: python -m "
            "data_tools hub {folder} --preset cvssp/WavCaps --out {manifest}",
            "python -m data_tools wavcaps {folder}/fsd_final.json --audio {folder}/freesound --exclude "
            "dcase2025_task6_excluded_freesound_ids.csv --out {folder}_freesound.jsonl (likewise bbc_final, sb_final "
            "and as_final, each with its own --out)",
        ),
    ),
    "castella": PublishedSet(
        "CASTELLA: annotations CC BY 4.0; the audio is of YouTube videos, without a licence",
        (),
        steps=(
            "annotations: copy data/ of github.com/line/CASTELLA into {folder}",
            "features (frames of CLAP and other models): zenodo.org/records/18358706; or the audio, by the downloader "
            "of that repository: the first 300 s of each video, 32 kHz mono",
            "python -m data_tools castella {folder} --out {manifest} --moments {folder}_moments.jsonl",
        ),
    ),
    "clotho_moment": PublishedSet(
        "Clotho-Moment: made of Clotho and WalkingTours; see Clotho for the terms",
        (),
        steps=(
            "features, 22.7 GB: zenodo.org/records/17129257; or the audio, about 200 GB: zenodo.org/records/13836117, "
            "or lighthouse-emnlp2024/Clotho-Moment on the Hugging Face hub",
            "python -m data_tools castella {folder} --out {manifest} --moments {folder}_moments.jsonl",
        ),
    ),
}
