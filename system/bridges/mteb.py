"""A model in mteb's evaluations of audio retrieval.

    mteb.evaluate(MtebModel(load_model("runs/RUN")), mteb.get_tasks(["ClothoT2ARetrieval"]))

Clips are scored as `lbar rank` does, whatever the score is, so that models of moments can be evaluated too.
"""

from typing import Any

import numpy as np
from datasets import Audio, Dataset
from mteb.models import ModelMeta

from system.audio.checkpoint import weights_sha256
from system.retriever import Retriever


class MtebModel:
    """What mteb calls a search model."""

    def __init__(self, model: Retriever) -> None:
        self.model = model
        facts = {"name": f"lbar-kit/{model.folder.name}", "revision": weights_sha256(model.model)[:12]}
        self.mteb_model_meta = ModelMeta.create_empty(overwrites=facts | {"modalities": ["text", "audio"]})

    def index(self, corpus: Dataset, **kwargs: Any) -> None:
        """Take the documents: sounds or texts."""
        self._corpus = corpus

    def search(self, queries: Dataset, *, top_k: int, top_ranked: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Score the documents for all queries.

        Returns:
            By query, the scores of the best `top_k` documents, or of those that `top_ranked` names.
        """
        corpus = self._corpus
        if "audio" in corpus.column_names:
            scores = self.model.score_sounds(queries["text"], _sounds(corpus))
        else:
            scores = self.model.score_sounds(corpus["text"], _sounds(queries)).T
        ids, found = np.array(corpus["id"]), {}
        for query, row in zip(queries["id"], scores, strict=True):
            if top_ranked is not None:
                row = np.where(np.isin(ids, top_ranked[query]), row, -np.inf)
            best = np.argsort(-row, kind="stable")[:top_k]
            found[query] = {str(ids[one]): float(row[one]) for one in best if np.isfinite(row[one])}
        return found


def _sounds(data: Dataset) -> Dataset:
    """Return the column of sounds, which the kit decodes itself."""
    is_encoded = isinstance(data.features["audio"], Audio)
    return (data.cast_column("audio", Audio(decode=False)) if is_encoded else data)["audio"]
