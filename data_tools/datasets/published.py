"""Addresses and checksums of published data sets.

The verb `get` fetches these files. Sources of addresses and MD5s:
    Clotho, the blind set, AudioCaps' tables: github.com/Labbeti/aac-datasets 0.7.0, datasets/functional/.
    Audio of AudioCaps and WavCaps: github.com/CPJKU/dcase2025_task6_baseline, download_datasets.py.
    CASTELLA, Clotho-Moment: README of github.com/awkrail/dcase2026_task6_baseline, and the queries of
    github.com/line/lighthouse at commit d095eaa, whose MD5s are from a participant's notes.
    Frames of Clotho-Moment: their copy on the Hugging Face hub.
    Features of 2026: Zenodo's API lists the files of a record with their MD5s. The names of the files in the records
    20772071, 20770460 and 20450254 were not verified, so these sets have no manifest command.
"""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple


class PublishedFile(NamedTuple):
    """A published file.

    Attributes:
        address: Address of the file.
        md5: MD5 of the file; "" if it is not known.
        folder: Folder for the file in the data set's folder. An archive is always unpacked into the latter.
        file_name: Name of the file; "": the last part of the address.
    """

    address: str
    md5: str = ""
    folder: str = ""
    file_name: str = ""

    @property
    def name(self) -> str:
        """Path of the file in the data set's folder."""
        name = self.file_name or self.address.rpartition("/")[2]
        return f"{self.folder}/{name}" if self.folder else name

    @property
    def archive(self) -> str:
        """Name of the archive that the file is or belongs to, such as x.7z.001; "" for other files."""
        if part := _PART.fullmatch(self.name):
            return f"{part[1]}.001"
        return self.name if self.name.endswith((".7z", ".zip", ".tar.gz")) else ""


class PublishedSet(NamedTuple):
    """A published data set.

    Attributes:
        licence: Licence, with the terms of use.
        size: Size of the download, in words.
        files: Files to fetch.
        make: Commands of `lbar data` that write the manifests. {folder}, {manifest} and {stem} (the manifest's path
            without .jsonl) stand for paths.
        steps: Instructions for parts of the data set without a public address.
        layout: Where the files of an existing copy must lie.
        record: Number of the Zenodo record that lists the files, if `files` is empty.
    """

    licence: str
    size: str
    files: tuple[PublishedFile, ...] = ()
    make: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    layout: str = ""
    record: str = ""


_PART = re.compile(r"(.+\.7z)\.\d{3}")


def _files_below(at: str, checksums: Mapping[str, str], folder: str = "") -> tuple[PublishedFile, ...]:
    """Return the files at the address `at`/NAME, to put in `folder`. checksums: Dict from NAME to MD5 ("": unknown)."""
    return tuple(PublishedFile(f"{at}/{name}", md5, folder) for name, md5 in checksums.items())


_CLOTHO = "https://zenodo.org/record/4783391/files"
_BLIND = "https://zenodo.org/record/6590983/files"
_AUDIOCAPS = "https://raw.githubusercontent.com/cdjkim/audiocaps/master/dataset"
_LISTS = "https://raw.githubusercontent.com/Labbeti/aac-datasets/main/data/wavcaps"
_LIST_NAME = "dcase2025_task6_excluded_freesound_ids.csv"
_LIST_2025 = f"https://raw.githubusercontent.com/CPJKU/dcase2025_task6_baseline/HEAD/resources/{_LIST_NAME}"
_JKU = "https://cloud.cp.jku.at/index.php/s"
_WAVCAPS = "https://huggingface.co/datasets/cvssp/WavCaps/resolve/main/json_files"
_WAVCAPS_MP3 = [  # keys in the addresses of the parts 1 to 15
    "BxBp6r6asdsiWK8",
    "dYMoW7D7nAx2LSE",
    "6TREKcC4e7nzk2E",
    "pg47anEan8kPaTD",
    "4DSTDiC2kWPSgc7",
    "XZ3s7mkdyn9pZ2K",
    "fKwb8c5FMS3KYDa",
    "ZW4LgFfxNJS3PGb",
    "pG2i2fqJBr96EW9",
    "NfN977dpoirFr9D",
    "qWoqYiHzeDa7xSw",
    "8EPsKozRn9WekG4",
    "8Mri5yQmLPfKKSt",
    "qc6FRwTSTXw6FX7",
    "mTG3XMirG9EzMEb",
]
_MOMENTS = "https://raw.githubusercontent.com/line/lighthouse/d095eaa552cecef240897a8b750306b3b2a08740/data"
_CLOTHO_MOMENT_FRAMES = "https://huggingface.co/datasets/lighthouse-emnlp2024/Clotho-Moment_CLAP_features/resolve/main"
_PARTS = {  # WavCaps' captions, with the name of the part's manifest, and the option for its forbidden ids
    "FreeSound/fsd_final.json": ("freesound", f" --exclude {{folder}}/{_LIST_NAME}"),
    "BBC_Sound_Effects/bbc_final.json": ("bbc", ""),
    "SoundBible/sb_final.json": ("soundbible", ""),
    "AudioSet_SL/as_final.json": ("audioset", ""),
}

_WITH_FEATURES = (
    "lbar data castella data/{data} --name {data} --features FOLDER_OF_ONE_MODEL --out {{manifest}} --moments "
    "{{stem}}_moments.jsonl, after `get {data}`, whose queries it reads"
)

SETS = {
    "clotho": PublishedSet(
        "Clotho v2.1: audio under each file's Freesound licence (some non-commercial), captions for non-commercial "
        "research (Tampere University licence)",
        "6.5 GB, 11 GB unpacked",
        _files_below(
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
        ("clotho {folder} --out {manifest}",),
        layout="an existing copy has clotho_captions_SPLIT.csv, clotho_metadata_SPLIT.csv and the audio in SPLIT/; "
        "lbar data clotho COPY --out {manifest} reads it in place",
    ),
    "clotho_blind": PublishedSet(
        "blind set of 2022 to 2024: audio under each file's Freesound licence, captions for non-commercial research; "
        "not for the development of methods",
        "2 GB unpacked",
        _files_below(
            _BLIND,
            {
                "retrieval_captions.csv": "f9e810118be00c64ea8cd7557816d4fe",
                "retrieval_audio_metadata.csv": "1301db07acbf1e4fabc467eb54e0d353",
                "retrieval_audio.7z": "24102395fd757c462421a483fba5c407",
            },
        ),
        ("blind {folder}/test --out {manifest}",),
    ),
    "exclusion_lists": PublishedSet(
        "lists of sounds that must not be used for training: sounds of WavCaps that are in Clotho or AudioCaps too "
        "(aac-datasets), and the list of 2025 (dcase2025_task6_baseline); both MIT",
        "less than 1 MB",
        (
            *_files_below(_LISTS, {"blacklist_clotho.full.csv": "", "blacklist_audiocaps.full.csv": ""}),
            PublishedFile(_LIST_2025),
        ),
    ),
    "audiocaps": PublishedSet(
        "AudioCaps v1: captions for academic use only; the audio is 10 s of YouTube videos, without a licence",
        "no size is published; 32 GB as WAV at 32 kHz",
        (
            *_files_below(_AUDIOCAPS, {"train.csv": "", "val.csv": "", "test.csv": ""}),
            PublishedFile(f"{_JKU}/9MiMcrNjJ3Z9FfH/download/AUDIOCAPS.zip"),
        ),
        ("audiocaps {folder} --out {manifest}",),
    ),
    "wavcaps": PublishedSet(
        "WavCaps as MP3 at 32 kHz: for academic use only; each sound has the licence of its source",
        "157 GB in 15 parts, and another 157 GB unpacked",
        (
            PublishedFile(_LIST_2025),
            *(PublishedFile(f"{_WAVCAPS}/{part}", folder=f"json_files/{PurePath(part).parent}") for part in _PARTS),
            *(
                PublishedFile(f"{_JKU}/{key}/download/WavCaps_mp3.7z.{number:03}")
                for number, key in enumerate(_WAVCAPS_MP3, 1)
            ),
        ),
        tuple(
            f"wavcaps {{folder}}/json_files/{part}{exclude} --out {{stem}}_{name}.jsonl"
            for part, (name, exclude) in _PARTS.items()
        ),
    ),
    "castella": PublishedSet(
        "CASTELLA, with frames of MS-CLAP: annotations CC BY 4.0; the audio is of YouTube videos, without a licence",
        "no size is published; about 1.3 GB",
        (
            *_files_below(
                f"{_MOMENTS}/castella",
                {
                    "castella_train_release.jsonl": "937fffdcd431c89a65457c4e09097d72",
                    "castella_val_release.jsonl": "7109907e4d1300eb84e8f447c5729837",
                    "castella_test_release.jsonl": "fa8e3be93e23452a9474d511b1bd2409",
                },
            ),
            PublishedFile("https://zenodo.org/records/18358706/files/clap.tar.gz"),
        ),
        ("castella {folder} --features {folder}/clap --out {manifest} --moments {stem}_moments.jsonl",),
        (
            "if you submit: lbar data get moments_blind",
            "if you want the audio: github.com/h-munakata/CASTELLA-audio fetches the first 300 s of each video, 32 kHz "
            "mono; then: lbar data castella {folder} --audio AUDIO --out {manifest} --moments "
            "{stem}_moments.jsonl",
        ),
    ),
    "clotho_moment": PublishedSet(
        "Clotho-Moment, with frames of MS-CLAP: made of Clotho and WalkingTours; see Clotho for the terms",
        "20.8 GB, and another 20.8 GB unpacked",
        (
            *_files_below(
                f"{_MOMENTS}/clotho_moment",
                {
                    "clotho_moment_train_release.jsonl": "146555a5333638a4607ec63e3e3e2f71",
                    "clotho_moment_val_release.jsonl": "cd3707e3964ce5294ad10ad35bda2837",
                    "clotho_moment_test_release.jsonl": "58193c2fe7cbcc30c79ccbbb0f95dd8c",
                },
            ),
            PublishedFile(f"{_CLOTHO_MOMENT_FRAMES}/clap.tar.gz"),
        ),
        (
            "castella {folder} --name clotho_moment --features {folder}/clap --out {manifest} --moments "
            "{stem}_moments.jsonl",
        ),
        (
            "if you want the audio, about 200 GB: lighthouse-emnlp2024/Clotho-Moment on the Hugging Face hub, or "
            "zenodo.org/records/13836117; then: lbar data castella {folder} --name clotho_moment --audio "
            "AUDIO --out {manifest} --moments {stem}_moments.jsonl",
        ),
    ),
    "castella_features": PublishedSet(
        "features of CASTELLA by M2D-CLAP, LAION-CLAP and BEATs with T5, after the organisers' fixes of October 2026; "
        "its blind set is in the set moments_blind (MS-CLAP)",
        "see the record",
        steps=(_WITH_FEATURES.format(data="castella"),),
        record="20772071",
    ),
    "clotho_moment_features": PublishedSet(
        "features of Clotho-Moment by M2D-CLAP, LAION-CLAP and BEATs with T5",
        "see the record",
        steps=(_WITH_FEATURES.format(data="clotho_moment"),),
        record="20770460",
    ),
    "moments_blind": PublishedSet(
        "blind list of 2026 with its features of MS-CLAP; not for the development of methods",
        "see the record",
        steps=(
            "copy the list into data/castella and its features into data/castella/clap, then: lbar data castella "
            "data/castella --features data/castella/clap --out data/castella.jsonl --moments "
            "data/castella_moments.jsonl",
        ),
        record="20450254",
    ),
}
