"""Perception Encoder audio: sounds and texts.

The audio encoder and the text encoder of Meta's PE-AV and PE-A-Frame, each loaded without the other encoder. Imports
torch and transformers.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PeAudioConfig, PeAudioEncoder, PeAudioVideoConfig
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.pe_audio.modeling_pe_audio import PeAudioContrastiveHead, PeAudioPreTrainedModel

from data_tools.files import read_json

# B clips or texts, L frames or tokens, N samples, D values of an embedding


def read_config(folder: Path) -> PeAudioConfig:
    """Read the configuration of a PE model's audio and text encoders; its type may be pe_audio or pe_audio_video.

    Deviation: PeAudioModel.from_pretrained ignores the text settings of a checkpoint of type pe_audio_video.
    """
    kind = read_json(folder / "config.json").get("model_type")
    whole = PeAudioVideoConfig if kind == "pe_audio_video" else PeAudioConfig
    found = whole.from_pretrained(folder, trust_remote_code=False)
    config = found.audio_config if isinstance(found, PeAudioVideoConfig) else found
    return PeAudioConfig(text_config=config.text_config, audio_config=config.audio_config)


class PeSounds(PeAudioPreTrainedModel):  # type: ignore[misc]
    """Waves -> embeddings of the clip and of its frames of 0.04 s, in the same space as embeddings of texts.

    The results equal get_audio_embeds of PeAudioModel (clip) and of PeAudioFrameLevelModel (frames). Embeddings do not
    have unit length.
    """

    config: PeAudioConfig
    base_model_prefix = "audio_model"
    main_input_name = "input_values"

    def __init__(self, config: PeAudioConfig) -> None:
        """Build the audio encoder and its projection with untrained weights."""
        super().__init__(config)
        self.audio_encoder = PeAudioEncoder(config.audio_config)
        self.audio_head = PeAudioContrastiveHead(config.audio_config.hidden_size, config.text_config.hidden_size)
        self.post_init()

    def forward(
        self, input_values: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> BaseModelOutputWithPooling:
        """Embed clips. Returns: pooler_output (B, D) of B clips, and last_hidden_state (B, L, D) of their L frames.

        input_values: (B, 1, N) at 48 kHz, N a multiple of 1920. padding_mask: (B, N), 1 for samples of the clip.
        """
        output = self.audio_encoder(input_values=input_values, padding_mask=padding_mask, return_dict=True)
        return BaseModelOutputWithPooling(
            last_hidden_state=self.audio_head(output.last_hidden_state),
            pooler_output=self.audio_head(output.pooler_output),
        )


class PeTexts(PeAudioPreTrainedModel):  # type: ignore[misc]
    """Tokens of B texts -> embeddings (B, D) in the same space as sounds; and the scale and bias for logits.

    The embedding is computed from the tensor at token 0 that enters the final norm of the text model, as in the
    original code and in transformers 5.0. It is read by a hook, since the `hidden_states` of transformers 5.1 to 5.24
    only have the tensor after this norm.
    Source: facebookresearch/perception_models, core/audio_visual_encoder.
    """

    config: PeAudioConfig
    base_model_prefix = "audio_model"
    main_input_name = "input_ids"

    def __init__(self, config: PeAudioConfig) -> None:
        """Build the text encoder, its projection, and the scale and bias of logits, with untrained weights."""
        super().__init__(config)
        self.text_model = AutoModel.from_config(config.text_config)
        self.text_audio_head = PeAudioContrastiveHead(config.text_config.hidden_size, config.text_config.hidden_size)
        self.text_audio_logit_scale = nn.Parameter(torch.zeros(1))
        self.text_audio_logit_bias = nn.Parameter(torch.zeros(1))
        self.post_init()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Embed texts. input_ids, attention_mask: (B, L). Returns: (B, D)."""
        entering: list[torch.Tensor] = []

        def store_input(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            """Store the input of the final norm; the embedding is computed from this tensor."""
            entering.append(inputs[0])

        handle = self.text_model.final_norm.register_forward_pre_hook(store_input)
        try:
            self.text_model(input_ids=input_ids, attention_mask=attention_mask)
        finally:
            handle.remove()
        result: torch.Tensor = self.text_audio_head(entering[-1][:, 0])
        return result
