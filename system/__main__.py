"""Command line: `lbar VERB ...`, and `lbar data` and `lbar submit` for the other floors."""

import logging
import sys
from typing import NoReturn

from data_tools import __main__ as data_tools
from data_tools.cli import Verb, ranks, run_cli
from submission import __main__ as submission
from system.compute.processes import exit_process

# Description of each verb, and the arguments of an example.
_VERBS = {
    "recipes": (
        "list the shipped recipes, copy one, or print the reference of all keys",
        "list\n  lbar recipes new mine --from clotho\n  lbar recipes keys stages.optimizer",
    ),
    "check": (
        "print all mistakes of a recipe or a study, or what it needs and what is missing",
        "recipes/quickstart.yaml",
    ),
    "download": (
        "fetch and verify the published weight files of a recipe that are missing on this machine",
        "recipes/clotho.yaml",
    ),
    "features": ("compute the missing frames of a recipe", "recipes/quickstart.yaml"),
    "train": ("train a recipe's stages, or resume them", "recipes/quickstart.yaml --set seed=2"),
    "rank": (
        "score any clips for any queries with a trained model, or find the times of queries in long recordings",
        "runs/RUN --audio data/blind/test --queries data/blind/captions.csv --out blind.npy\n"
        "  lbar rank runs/A runs/B --windows --audio castella.jsonl --moments moments.jsonl --split test "
        "--out windows.jsonl",
    ),
    "run": (
        "run all steps of a recipe: data, features, training, ranking, submission files; finished steps are skipped",
        "recipes/quickstart.yaml",
    ),
    "runs": (
        "list all runs: state, epoch, best validation metric, test metric, hours of training, changed settings",
        "runs --sort validation",
    ),
    "relevance": (
        "print how similar pairs of captions are by CIDEr-D, and thresholds for the setting relax",
        "data/clotho/clotho_captions_development.csv --figure relevance.png",
    ),
    "study": (
        "run a recipe with several seeds and settings, and print a table of the results",
        "recipes/esc_scenes.study.yaml",
    ),
    "experts": (
        "list the frozen audio models: sample rate, frames, size, cost, files and their addresses",
        "recipes/quickstart.yaml\n  lbar experts",
    ),
    "convert": (
        "convert published weights: yamnet.tflite, checkpoints of retrieval models, or M2D-CLAP's text encoder",
        "yamnet.tflite --out data/weights/yamnet_layers.npz",
    ),
    "word_vectors": (
        "write the input embeddings of a pre-trained transformer as word vectors",
        "FOLDER_OF_all-MiniLM-L6-v2 --out data/weights/minilm_words.bin",
    ),
    "export": ("write a trained model as one folder for another machine", "runs/RUN --out my_model"),
    "search": (
        "print the clips of a folder that a trained model finds for queries",
        'runs/RUN data/sounds "a dog barks" --top 10',
    ),
    "embeddings": (
        "write a trained model's embeddings of clips and captions, for other programs",
        "runs/RUN data/sounds --out sounds.npz",
    ),
    "serve": (
        "search clips with a trained model on a page in the browser",
        "runs/RUN\n  lbar serve my_model --audio data/blind/test",
    ),
}
# Verbs that can be resumed after an interrupt: at least the frames that they computed are kept.
_RESUME = {"download", "features", "train", "rank", "run", "study", "search", "embeddings", "serve"}
_SINGLE = {"download", "rank", "convert", "word_vectors", "export", "search", "embeddings", "serve"}  # one process only
_SEVERAL = {"features", "train", "run", "study"}  # one or more processes of torchrun
VERBS = {
    name: Verb(what, f"lbar {name} {example}", f"verbs.{name}", name in _RESUME, name in _SEVERAL)
    for name, (what, example) in _VERBS.items()
}


def main(argv: list[str] | None = None) -> int:
    """Run the command line `lbar VERB ...`, and return its exit status."""
    for chatty in ("httpx", "sentence_transformers", "urllib3", "huggingface_hub"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    argv = sys.argv[1:] if argv is None else argv
    if ranks()[1] > 1 and argv and argv[0] in _SINGLE:
        print(f"{argv[0]} needs exactly one process; run it without torchrun", file=sys.stderr)
        return 2
    text = "Check, train and use retrieval systems; `lbar data` makes data sets, `lbar submit` the challenge's files."
    return run_cli("system", text, VERBS, argv)


def lbar() -> NoReturn:
    """Run the program `lbar`, and end the process."""
    first, rest = sys.argv[1:2], sys.argv[2:]
    if first == ["data"]:
        exit_process(data_tools.main(rest))
    exit_process(submission.main(rest) if first == ["submit"] else main())


if __name__ == "__main__":
    exit_process(main())
