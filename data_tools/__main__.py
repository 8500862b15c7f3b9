"""The command line of this package: `lbar data VERB ...`."""

import sys

from data_tools.cli import Verb, run_cli

VERBS = {
    "crawl": Verb(
        "read the descriptions of all of Freesound into a store; may be stopped and continued at any time",
        "lbar data crawl data/freesound.sqlite",
        "freesound.crawl",
        resumes=True,
    ),
    "status": Verb(
        "print the state of a crawl",
        "lbar data status data/freesound.sqlite",
        "freesound.status",
    ),
    "fetch": Verb(
        "fetch the sounds whose descriptions have the best scores, as FLAC with a manifest; "
        "leave out sounds on exclusion lists",
        "lbar data fetch data/freesound.sqlite --scores data/classified/scores.csv "
        "--exclude data/exclusion_lists/dcase2025_task6_excluded_freesound_ids.csv --out data/freesound",
        "freesound.fetch",
        resumes=True,
    ),
    "sandbox": Verb(
        "serve invented sounds as Freesound's API does, to try crawl, classify and fetch without a key",
        "lbar data sandbox --sounds 2000",
        "freesound.sandbox",
    ),
    "get": Verb(
        "fetch a published data set, verify and unpack it, and make its manifest; or print the steps",
        "lbar data get clotho",
        "datasets.get",
        resumes=True,
    ),
    "clotho": Verb(
        "make a manifest of Clotho, or of a folder laid out like it",
        "lbar data clotho data/clotho --out data/clotho.jsonl",
        "datasets.clotho",
    ),
    "audiocaps": Verb(
        "make a manifest of AudioCaps",
        "lbar data audiocaps data/audiocaps --out data/audiocaps.jsonl",
        "datasets.audiocaps",
    ),
    "wavcaps": Verb(
        "make a manifest of one of WavCaps' four parts",
        "lbar data wavcaps data/wavcaps/json_files/BBC_Sound_Effects/bbc_final.json --out data/bbc.jsonl",
        "datasets.wavcaps",
    ),
    "castella": Verb(
        "make a manifest and a file of moments of CASTELLA, or of a data set in its format",
        "lbar data castella data/castella --out data/castella.jsonl --moments data/castella_moments.jsonl",
        "datasets.castella",
    ),
    "table": Verb(
        "make a manifest from a table of audio files and captions",
        "lbar data table my.csv --audio file --caption caption --out data/my.jsonl",
        "datasets.table",
    ),
    "hub": Verb(
        "unpack parquet files or WebDataset tars of the Hugging Face hub, and make a manifest",
        "lbar data hub data/AudioCaps --audio data/audiocaps --name youtube_id start_time --out data/audiocaps.jsonl",
        "datasets.hub",
        resumes=True,
    ),
    "blind": Verb(
        "make a manifest of a folder of audio without captions",
        "lbar data blind data/retrieval_audio/test --out data/blind.jsonl",
        "datasets.blind",
    ),
    "transcode": Verb(
        "convert the audio of a manifest to one rate and format, to save disk and decoding time",
        "lbar data transcode data/wavcaps_bbc.jsonl --rate 32000 --out data/wavcaps_bbc_flac",
        "datasets.transcode",
        resumes=True,
    ),
    "check": Verb(
        "find bad audio, and training clips that are forbidden or in a test split too (exit status 1)",
        "lbar data check data/clotho.jsonl data/freesound.jsonl --exclude dcase2025_task6_excluded_freesound_ids.csv "
        "--list findings.csv",
        "check",
    ),
    "scenes": Verb(
        "compose a captioned data set of synthetic or recorded sound events, laid out like Clotho",
        "lbar data scenes data/scenes --seed 1\n"
        "  lbar data scenes data/esc_scenes --seed 1 --recordings data/ESC-50 "
        "--folds development=1,2,3 validation=4 evaluation=5",
        "scenes.build",
        resumes=True,
    ),
    "classify": Verb(
        "score how much each description of a sound resembles a caption; `fetch` chooses sounds by these scores",
        "lbar data classify data/freesound.sqlite --captions data/clotho/clotho_captions_development.csv "
        "--out data/classified",
        "classify.verb",
        resumes=True,
    ),
}


def main(argv: list[str] | None = None, inside: bool = False) -> int:
    """Run one command-line verb of this package; return its exit status.

    inside: Whether another verb calls this function. Results then go to standard error.
    """
    return run_cli("data_tools", "Make, check and compose data sets.", VERBS, argv, inside=inside)


if __name__ == "__main__":
    sys.exit(main())
