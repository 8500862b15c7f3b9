"""Text sides of published models of audio and text.

They are CLAP and Perception Encoder audio (PE-AV, PE-A-Frame).
"""

import json
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from data_tools.classify.embed import position_count
from data_tools.errors import KitError
from data_tools.files import read_json
from system.models.text.published import PublishedText

# N texts, L tokens, D values of an embedding

CLAP_TOKENS = 77
TYPES = {"clap": ("clap", "clap_text_model"), "pe_audio": ("pe_audio", "pe_audio_video")}  # in config.json
KIND = "text model"
TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model")  # without one, the library makes an empty tokenizer


class JointText(PublishedText):
    """The text side of a CLAP, PE-AV or PE-A-Frame.

    With the audio encoder of the same model it is a zero-shot system. CLAP cuts captions at 77 tokens, as its processor
    does. PE needs the score `dot_product` (PE-AV) or `frame_dot_products` (PE-A-Frame), since its embeddings do not
    have unit length.

    Sources: Wu et al., "Large-Scale Contrastive Language-Audio Pretraining" (2023); Meta's Perception Encoder
    Audiovisual (2025).
    """

    kind: Literal["clap", "pe_audio"]

    def load(self) -> "JointTexts":
        return JointTexts(self.model, self.kind)


class JointTexts(nn.Module):
    """A text side behind the interface of a SentenceTransformer."""

    prompts: ClassVar[dict[str, str]] = {}
    default_prompt_name = None

    def __init__(self, name: str, kind: str) -> None:
        """Load the tokenizer and the text side of a model.

        Raises:
            KitError: Another model, a tokenizer or weights are missing, or a file is damaged.
        """
        from transformers import AutoTokenizer, ClapTextModelWithProjection

        from system.audio.hub import PeTexts, load_model, read_pe_config, reading, require_type

        super().__init__()
        folder, is_clap = require_type(name, TYPES[kind], KIND), kind == "clap"
        if not any(one.is_file() for pattern in TOKENIZER_FILES for one in folder.glob(pattern)):
            raise KitError(f"text model {folder} has no tokenizer file, such as tokenizer.json; download it again")
        with reading(folder):
            self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        settings = {} if is_clap else {"config": read_pe_config(folder)}
        self.network = load_model(ClapTextModelWithProjection if is_clap else PeTexts, folder, **settings)
        longest = CLAP_TOKENS if is_clap else 1 << 20
        positions = position_count(getattr(self.network, "text_model", self.network)) or longest
        self.longest = min(longest, positions, self.tokenizer.model_max_length)

    def get_embedding_dimension(self) -> int:
        config = self.network.config
        return int(getattr(config, "projection_dim", 0) or config.text_config.hidden_size)

    def preprocess(self, texts: list[str], prompt: str | None = None) -> dict[str, Tensor]:
        inputs = self.tokenizer(texts, padding=True, truncation=True, max_length=self.longest, return_tensors="pt")
        return {name: inputs[name] for name in ("input_ids", "attention_mask")}

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        found = self.network(**inputs)
        return {"sentence_embedding": found if torch.is_tensor(found) else found.text_embeds}

    @property
    def logit_numbers(self) -> tuple[float, float] | None:
        """Published scale and bias of PE, for dot products."""
        if not hasattr(self.network, "text_audio_logit_scale"):
            return None
        return float(self.network.text_audio_logit_scale), float(self.network.text_audio_logit_bias)

    def save(self, path: str) -> None:
        self.network.save_pretrained(path)
        self.tokenizer.save_pretrained(path)
        if self.logit_numbers is not None:  # a PE model is opened as a whole one
            config = Path(path) / "config.json"
            config.write_text(json.dumps(read_json(config) | {"architectures": ["PeAudioModel"]}), encoding="utf-8")
