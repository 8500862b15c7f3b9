"""Perception Encoder audio: sounds and texts.

The audio encoder and the text encoder of Meta's PE-AV and PE-A-Frame, each loaded without the other encoder. Imports
torch and transformers.
"""

from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PeAudioConfig
from transformers.models.pe_audio.modeling_pe_audio import PeAudioContrastiveHead, PeAudioPreTrainedModel

# B clips or texts, L frames or tokens, N samples, D values of an embedding


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
