"""A model as the only module of a SentenceTransformer.

    SentenceTransformer("my_model", trust_remote_code=True)  # an exported model, where the kit is installed

The library asks for trust_remote_code for each module that is not its own.
"""

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import __version__
from sentence_transformers.base.modality import infer_batch_modality
from sentence_transformers.base.modules import InputModule
from sentence_transformers.util import load_dir_path

from data_tools.errors import KitError
from data_tools.files import write_json
from data_tools.names import is_audio_name
from system.retriever import Retriever, load_model


class RetrieverModule(InputModule):  # type: ignore[misc]
    """Embeds texts or sounds in the library's forms.

    Arrays of samples have the model's `sampling_rate`.
    """

    def __init__(self, retriever: Retriever) -> None:
        super().__init__()
        self.retriever, self.model = retriever, retriever.model

    @property
    def modalities(self) -> list[Any]:
        """What the model reads."""
        return ["text", "audio"]

    def get_embedding_dimension(self) -> int:
        """Return the number of values per embedding."""
        return self.retriever.dim

    def preprocess(self, inputs: Any, prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Return the texts or the sounds of a batch."""
        kind = str(infer_batch_modality(inputs, supported_modalities=self.modalities))
        if absent := [one for one in inputs if kind == "text" and isinstance(one, str) and is_audio_name(one)]:
            raise KitError(f"{absent[0]}: no such audio file; correct the path")
        found = [one[kind] if isinstance(one, dict) and kind in one else one for one in inputs]
        return {kind: [prompt + one for one in found] if prompt and kind == "text" else found}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Embed a batch: `sentence_embedding` (N, D)."""
        if "text" in features:
            found = self.retriever.encode_text(features["text"])
        else:
            found = self.retriever.encode_audio(features["audio"], self.retriever.sampling_rate)
        return features | {"sentence_embedding": torch.from_numpy(found).to(self.model.device)}

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> "RetrieverModule":
        """Open an exported model of a folder or the hub."""
        named = ("token", "cache_folder", "revision", "local_files_only")
        place = load_dir_path(model_name_or_path, subfolder, **{key: kwargs[key] for key in named if key in kwargs})
        return cls(load_model(place or model_name_or_path, device="cpu"))

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Refuse: the export of the run is the saved form."""
        raise KitError("a model of lbar-kit is saved by lbar export; copy its folder")


def write_module(folder: Path, unit_length: bool) -> None:
    """Write the files by which SentenceTransformer opens an exported model.

    Args:
        unit_length: Whether the model compares by cosines, not by dot products.
    """
    kind = f"{RetrieverModule.__module__}.{RetrieverModule.__name__}"
    write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": kind}])
    similarity = "cosine" if unit_length else "dot"
    settings = {"__version__": {"sentence_transformers": __version__}, "similarity_fn_name": similarity}
    write_json(folder / "config_sentence_transformers.json", settings)
