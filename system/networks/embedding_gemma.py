"""EmbeddingGemma 2: sounds and texts.

The audio encoder and the text encoder of EmbeddingGemma 2, without its vision encoder. Imports torch and transformers.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, EmbeddingGemma2Config, EmbeddingGemma2Model
from transformers.modeling_outputs import BaseModelOutputWithPooling

# B clips or texts, L tokens, M mel bands, D values of an embedding


def read_config(folder: Path, with_audio: bool) -> EmbeddingGemma2Config:
    """Read a configuration of EmbeddingGemma 2 for audio (only if `with_audio`) and text, without vision encoder."""
    config = EmbeddingGemma2Config.from_pretrained(folder, trust_remote_code=False)
    config.vision_config = None
    if not with_audio:
        config.audio_config = None
    return config


class GemmaSounds(EmbeddingGemma2Model):  # type: ignore[misc]
    """Spectrograms of B sounds of one length -> embeddings (B, D): the mean of all tokens.

    The tokens are those of the library's processor for a sound without text: begin, content and end of the sound,
    between the tokenizer's special tokens. The processor itself is not used, since its video part needs torchvision.
    Embeddings are not scaled to length 1.
    """

    around: tuple[list[int], list[int]] = ([], [])  # ids of the tokens before and after those of the sound

    def load_tokenizer(self, folder: Path) -> Any:
        """Read and return the tokenizer of a folder, and store the ids of the special tokens that surround a sound."""
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        text = tokenizer("a", add_special_tokens=False)["input_ids"]
        whole = tokenizer("a")["input_ids"]
        first = next(n for n in range(len(whole)) if whole[n : n + len(text)] == text)
        before, after = whole[:first], whole[first + len(text) :]
        self.around = [*before, self.config.boa_token_id], [self.config.eoa_token_index, *after]
        return tokenizer

    def replace_infinite_buffers(self) -> None:
        """Replace infinite values in the model's buffers by the largest float32, so that they can be stored."""
        largest = torch.finfo(torch.float32).max
        for limit in self.buffers():
            if limit.is_floating_point():
                limit.nan_to_num_(nan=torch.nan, posinf=largest, neginf=-largest)

    def forward(self, input_features: torch.Tensor, input_features_mask: torch.Tensor) -> BaseModelOutputWithPooling:
        """Embed B sounds of one length. Returns: pooler_output (B, D), and last_hidden_state (B, L, D) of L tokens.

        input_features: (B, T, M) spectrograms of T columns and M bands. input_features_mask: (B, T), true for columns
        of the sound.
        """
        output = self.get_audio_features(input_features, input_features_mask, return_dict=True)
        mask = output.attention_mask.bool()
        sound = output.pooler_output[mask].unflatten(0, (len(mask), -1))
        embed = self.get_input_embeddings()
        before, after = (
            embed(torch.tensor([ids] * len(mask), dtype=torch.long, device=sound.device)) for ids in self.around
        )
        states = self.language_model(inputs_embeds=torch.cat([before, sound, after], 1)).last_hidden_state
        of_sound = states[:, before.shape[1] : states.shape[1] - after.shape[1]]
        return BaseModelOutputWithPooling(last_hidden_state=of_sound, pooler_output=states.mean(1))


class GemmaTexts(EmbeddingGemma2Model):  # type: ignore[misc]
    """Tokens of texts -> embeddings (B, D): the mean of all tokens, including special ones and the prompt."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embed texts. input_ids, attention_mask: (B, L). Returns: (B, D)."""
        states = self.language_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask[..., None].to(states.dtype)
        result: torch.Tensor = (states * weights).sum(1) / weights.sum(1)
        return result
