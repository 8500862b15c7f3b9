"""Text sides of published models of audio and text: CLAP, and Perception Encoder audio (PE-AV, PE-A-Frame)."""

import json
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from data_tools.classify.embed import position_count
from data_tools.classify.model_files import fetch
from data_tools.errors import KitError, first_line
from data_tools.files import read_json
from system.models.text.published import PublishedText

# N texts, L tokens, D values of an embedding

CLAP_TOKENS = 77
TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model")  # without one, the library makes an empty tokenizer


class Clap(PublishedText):
    """The text encoder of a public CLAP with its projection. With the audio encoder of the same model it is a zero-shot
    system. Captions are cut at 77 tokens, as in CLAP's processor.

    Source: Wu et al., "Large-Scale Contrastive Language-Audio Pretraining" (2023).
    """

    kind: Literal["clap"]

    def load(self) -> "JointTexts":
        from transformers import ClapTextModelWithProjection

        tokenizer, network = load_side(self.model, ("clap", "clap_text_model"), ClapTextModelWithProjection)
        return JointTexts(tokenizer, network, CLAP_TOKENS)


class PeAudioText(PublishedText):
    """The text encoder of PE-AV or PE-A-Frame with its projection. It needs the score `dot_product` (PE-AV) or
    `frame_dot_products` (PE-A-Frame), since its embeddings do not have unit length.

    Source: Meta's Perception Encoder Audiovisual (2025).
    """

    kind: Literal["pe_audio"]

    frozen_scores: ClassVar[tuple[str, ...]] = ("dot_product", "frame_dot_products")

    def load(self) -> "JointTexts":
        from system.audio.hub import read_pe_config
        from system.models.text.pe_audio import PeTexts

        types = ("pe_audio", "pe_audio_video")
        tokenizer, network = load_side(self.model, types, PeTexts, lambda: read_pe_config(fetch(self.model)))
        return JointTexts(tokenizer, network, None)


class JointTexts(nn.Module):
    """A text side behind the interface of a SentenceTransformer."""

    prompts: ClassVar[dict[str, str]] = {}
    default_prompt_name = None

    def __init__(self, tokenizer: Any, network: Any, longest: int | None) -> None:
        super().__init__()
        self.tokenizer, self.network = tokenizer, network
        limits = (tokenizer.model_max_length, position_count(getattr(network, "text_model", network)), longest)
        self.longest = min(limit for limit in limits if limit is not None)

    def get_embedding_dimension(self) -> int:
        config = self.network.config
        return int(getattr(config, "projection_dim", 0) or config.text_config.hidden_size)

    def preprocess(self, texts: list[str], prompt: str | None = None) -> dict[str, torch.Tensor]:
        inputs = self.tokenizer(texts, padding=True, truncation=True, max_length=self.longest, return_tensors="pt")
        return {name: inputs[name] for name in ("input_ids", "attention_mask")}

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = self.network(**inputs)
        return {"sentence_embedding": found if torch.is_tensor(found) else found.text_embeds}

    @property
    def logit_numbers(self) -> tuple[float, float] | None:
        """Scale and bias that turn the dot product of a clip and a text into a logit, as PE publishes them."""
        if not hasattr(self.network, "text_audio_logit_scale"):
            return None
        return float(self.network.text_audio_logit_scale), float(self.network.text_audio_logit_bias)

    def save(self, path: str) -> None:
        self.network.save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        if self.logit_numbers is not None:  # a PE model is opened as a whole one
            config = Path(path) / "config.json"
            config.write_text(json.dumps(read_json(config) | {"architectures": ["PeAudioModel"]}), encoding="utf-8")


def load_side(name: str, types: tuple[str, ...], network: Any, config: Any = None) -> tuple[Any, Any]:
    """Load the tokenizer and the text side of a model, in float32 on the CPU.

    Args:
        name: Folder or hub name.
        types: Possible model types in config.json.
        network: Class of the text side.
        config: Reads its settings, if the library cannot.

    Raises:
        KitError: Another model, a tokenizer or weights are missing, or a file is damaged.
    """
    from transformers import AutoTokenizer

    from system.audio.hub import silence_transformers

    folder = fetch(name)
    if (found := read_json(folder / "config.json").get("model_type")) not in types:
        raise KitError(f"text model {name!r} has model_type {found}, not {types[0]}; set another kind of text encoder")
    if not any(one.is_file() for pattern in TOKENIZER_FILES for one in folder.glob(pattern)):
        raise KitError(f"text model {folder} has no tokenizer file, such as tokenizer.json; download it again")
    try:
        with silence_transformers():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            settings: dict[str, Any] = {} if config is None else {"config": config()}
            settings |= {"dtype": torch.float32, "output_loading_info": True}
            model, said = network.from_pretrained(folder, trust_remote_code=False, **settings)
    except Exception as error:  # the library raises many kinds for a missing, cut, or foreign folder
        raise KitError(f"text model {name!r} cannot be loaded ({first_line(error)}); download it again") from error
    if missing := sorted({*said["missing_keys"], *(key for key, *_ in said.get("mismatched_keys", ()))}):
        named = f"{missing[0]} and {len(missing) - 1} others"
        raise KitError(f"text model {name!r} has no weights for {named}; download it again")
    return tokenizer, model
