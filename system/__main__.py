"""The command line of this floor: `python -m system VERB ...`."""

import logging
import sys

from data_tools.cli import Verb, run_cli

VERBS = {
    "recipes": Verb(
        "list the shipped recipes, copy one to begin with, or print the reference of all keys",
        "python -m system recipes list\n  python -m system recipes new mine --from clotho\n"
        "  python -m system recipes keys stages.optimizer",
        module="verbs.recipes",
    ),
    "check": Verb(
        "print all mistakes of a recipe or a study, or its plan, data, disk and memory",
        "python -m system check recipes/quickstart.yaml",
        module="verbs.check",
    ),
    "download": Verb(
        "fetch the published weight files that a recipe names and this machine lacks, and verify them",
        "python -m system download recipes/clotho.yaml",
        module="verbs.download",
    ),
    "features": Verb(
        "compute the frames a recipe needs and does not have yet",
        "python -m system features recipes/quickstart.yaml",
        module="verbs.features",
    ),
    "train": Verb(
        "train a recipe's stages, or go on where they stopped",
        "python -m system train recipes/quickstart.yaml --set seed=2",
        module="verbs.train",
    ),
    "rank": Verb(
        "score any clips for any queries with a trained model",
        "python -m system rank runs/RUN --audio data/blind/test --queries data/blind/captions.csv --out blind.npy",
        module="verbs.rank",
    ),
    "run": Verb(
        "do all of a recipe: data, features, training, the challenge's CSV, scores; what is done is skipped",
        "python -m system run recipes/quickstart.yaml",
        module="verbs.run",
    ),
    "runs": Verb(
        "list all runs: state, epoch, best validation, test, hours, changed settings",
        "python -m system runs\n  python -m system runs runs --sort validation",
        module="verbs.runs",
    ),
    "relevance": Verb(
        "print how CIDEr-D is distributed over the pairs of captions, and the thresholds of relax",
        "python -m system relevance data/clotho/clotho_captions_development.csv --figure relevance.png",
        module="verbs.relevance",
    ),
    "study": Verb(
        "run a recipe over seeds and changed settings, and print the table",
        "python -m system study recipes/esc_scenes.study.yaml",
        module="verbs.study",
    ),
    "experts": Verb(
        "list the frozen audio models: rate, frames, size, cost, files, where they are published",
        "python -m system experts\n  python -m system experts recipes/quickstart.yaml",
        module="verbs.experts",
    ),
    "convert": Verb(
        "make the weight file of the expert yamnet from the public yamnet.tflite",
        "python -m system convert yamnet.tflite --out data/weights/yamnet_layers.npz",
        module="verbs.convert",
    ),
    "word_vectors": Verb(
        "write the input embeddings of a pre-trained transformer as word vectors, a word each",
        "python -m system word_vectors FOLDER_OF_all-MiniLM-L6-v2 --out data/weights/minilm_words.bin",
        module="verbs.word_vectors",
    ),
    "export": Verb(
        "write a trained model as one folder for another machine",
        "python -m system export runs/RUN --out my_model",
        module="verbs.export",
    ),
    "search": Verb(
        "print the clips of a folder that a trained model finds for sentences",
        'python -m system search runs/RUN data/sounds "a dog barks" --top 10',
        module="verbs.search",
    ),
    "embeddings": Verb(
        "write the embeddings of clips and texts by a trained model, for other programs",
        "python -m system embeddings runs/RUN data/sounds --out sounds.npz",
        module="verbs.embeddings",
    ),
    "serve": Verb(
        "search clips with a trained model on a page in the browser",
        "python -m system serve runs/RUN\n  python -m system serve my_model --audio data/blind/test",
        module="verbs.serve",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run one verb; the exit status is run_cli's."""
    for chatty in ("httpx", "sentence_transformers", "urllib3", "huggingface_hub"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return run_cli("system", "Check, train and use retrieval systems.", VERBS, argv)


if __name__ == "__main__":
    sys.exit(main())
