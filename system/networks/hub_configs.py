"""Sizes of hub models.

Configurations of models of the hub: from this machine, or built-in sizes for the models of shipped recipes, so that
`check` can count parameters before they are fetched. Never imports torch.
"""

from typing import Any

from data_tools.classify.model_files import local_folder
from data_tools.errors import DataError
from data_tools.files import read_json

_BERT = {"model_type": "bert", "vocab_size": 30_522, "max_position_embeddings": 512, "type_vocab_size": 2}
_ROBERTA = {"model_type": "roberta", "vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1}
_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_SMALL = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
_HTSAT = {"model_type": "clap_audio_model", "patch_embeds_hidden_size": 96, "depths": [2, 2, 6, 2]}
_HTSAT |= {"num_attention_heads": [4, 8, 16, 32], "hidden_size": 768, "projection_dim": 512}
UNKNOWN = "the model's configuration is not on this machine; lbar download RECIPE fetches it"
PUBLISHED: dict[str, dict[str, Any]] = {
    "all-MiniLM-L6-v2": _BERT | _SMALL,
    "bert-base-uncased": _BERT | _BASE,
    "roberta-base": _ROBERTA | _BASE,
    "roberta-large": _ROBERTA | _LARGE,
    "clap-htsat-unfused": {
        "model_type": "clap",
        "projection_dim": 512,
        "audio_config": _HTSAT,
        "text_config": _ROBERTA | _BASE | {"model_type": "clap_text_model", "projection_dim": 512},
    },
}


def model_config(name: str, what: str = "text model") -> dict[str, Any] | None:
    """Return the configuration of the Hugging Face model `name`; None if not known. what: Kind of model, for messages.

    It is the content of config.json, if the folder, package or cached hub model exists; else the published sizes that
    the kit knows.
    """
    try:
        folder = local_folder(name, what)
        if folder is None:
            return PUBLISHED.get(name.rpartition("/")[2])
        return dict(read_json(folder / "config.json"))
    except (OSError, ValueError, TypeError, DataError):
        return None
