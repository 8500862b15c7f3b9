"""The command line of this package: `python -m data_tools VERB ...`."""

import sys

from data_tools.cli import Verb, run_cli

VERBS = {
    "crawl": Verb(
        "read the descriptions of all of Freesound into a store; may be stopped and continued at any time",
        "python -m data_tools crawl data/freesound.sqlite",
        "freesound.crawl",
        resumes=True,
    ),
    "status": Verb(
        "print the state of a crawl, and sounds that the API could not deliver",
        "python -m data_tools status data/freesound.sqlite",
        "freesound.status",
    ),
    "export": Verb(
        "write a crawl's store as a table",
        "python -m data_tools export data/freesound.sqlite --out data/freesound.csv",
        "datasets.export",
    ),
    "fetch": Verb(
        "fetch the sounds whose descriptions have the best scores, as FLAC with a manifest; "
        "leave out sounds on exclusion lists",
        "python -m data_tools fetch data/freesound.sqlite --scores data/classified/scores.csv "
        "--exclude data/exclusion_lists/dcase2025_task6_excluded_freesound_ids.csv --out data/freesound",
        "freesound.fetch",
        resumes=True,
    ),
    "sandbox": Verb(
        "serve invented sounds as Freesound's API does, to try crawl, classify and fetch without a key",
        "python -m data_tools sandbox --sounds 2000",
        "sandbox.verb",
    ),
    "get": Verb(
        "fetch a published data set, verify and unpack it, and make its manifest; or print the steps",
        "python -m data_tools get clotho",
        "datasets.get",
        resumes=True,
    ),
    "clotho": Verb(
        "make a manifest of Clotho, or of a folder laid out like it",
        "python -m data_tools clotho data/clotho --out data/clotho.jsonl",
        "datasets.clotho",
    ),
    "audiocaps": Verb(
        "make a manifest of AudioCaps",
        "python -m data_tools audiocaps data/audiocaps --out data/audiocaps.jsonl",
        "datasets.audiocaps",
    ),
    "wavcaps": Verb(
        "make a manifest of one of WavCaps' four parts",
        "python -m data_tools wavcaps data/wavcaps/json_files/BBC_Sound_Effects/bbc_final.json --out data/bbc.jsonl",
        "datasets.wavcaps",
    ),
    "castella": Verb(
        "make a manifest and a file of moments of CASTELLA, or of a data set in its format",
        "python -m data_tools castella data/castella --out data/castella.jsonl --moments data/castella_moments.jsonl",
        "datasets.castella",
    ),
    "table": Verb(
        "make a manifest from a table of audio files and captions",
        "python -m data_tools table my.csv --audio file --caption caption --out data/my.jsonl",
        "datasets.table",
    ),
    "hub": Verb(
        "unpack parquet files or WebDataset tars of the Hugging Face hub, and make a manifest",
        "python -m data_tools hub data/AudioCaps --audio data/audiocaps --name youtube_id start_time "
        "--out data/audiocaps.jsonl",
        "datasets.hub",
        resumes=True,
    ),
    "blind": Verb(
        "make a manifest of a folder of audio without captions",
        "python -m data_tools blind data/retrieval_audio/test --out data/blind.jsonl",
        "datasets.blind",
    ),
    "queries": Verb(
        "make a query file from a captions CSV or a manifest's captions",
        "python -m data_tools queries data/retrieval_captions.csv --out data/blind_queries.jsonl",
        "datasets.queries",
    ),
    "transcode": Verb(
        "convert the audio of a manifest to one rate and format, to save disk and decoding time",
        "python -m data_tools transcode data/wavcaps_bbc.jsonl --rate 32000 --out data/wavcaps_bbc_flac",
        "datasets.transcode",
        resumes=True,
    ),
    "check": Verb(
        "find missing and corrupt audio and duplicate ids (exit status 1), and overlaps between splits",
        "python -m data_tools check data/clotho.jsonl data/audiocaps.jsonl --list findings.csv",
        "leakage.check",
    ),
    "audit": Verb(
        "find training clips that are forbidden or are in a test split too, by id, name or sound (exit status 1)",
        "python -m data_tools audit data/freesound.jsonl --against data/clotho.jsonl "
        "--exclude dcase2025_task6_excluded_freesound_ids.csv --audio --list findings.csv",
        "leakage.audit",
    ),
    "scenes": Verb(
        "compose a captioned data set of synthetic or recorded sound events, laid out like Clotho",
        "python -m data_tools scenes data/scenes --seed 1\n"
        "  python -m data_tools scenes data/esc_scenes --seed 1 --recordings data/ESC-50 "
        "--folds development=1,2,3 validation=4 evaluation=5",
        "scenes.build",
        resumes=True,
    ),
    "ceiling": Verb(
        "print the ceiling of composed scenes: the mAP@10 of a model that knows every clip's sounds",
        "python -m data_tools ceiling data/scenes --split evaluation",
        "scenes.ceiling",
    ),
    "classify": Verb(
        "score how much each description of a sound resembles a caption; `fetch` chooses sounds by these scores",
        "python -m data_tools classify data/freesound.sqlite --captions data/clotho/clotho_captions_development.csv "
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
