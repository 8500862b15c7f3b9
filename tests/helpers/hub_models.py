"""Tiny models of the hub with random weights, saved to a folder as published ones are."""

import functools
import tempfile
from pathlib import Path
from typing import Any

CONVOLUTIONS: dict[str, Any] = {
    "conv_dim": (8, 8),
    "conv_stride": (160, 2),
    "conv_kernel": (400, 2),
    "conv_bias": False,
}
SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SPEECH = SMALL | CONVOLUTIONS | {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4}
SPEECH |= {"num_conv_pos_embedding_groups": 2, "vocab_size": 8, "apply_spec_augment": True, "mask_time_prob": 0.5}
NORMED = {"feat_extract_norm": "layer", "do_stable_layer_norm": True}


def made(kind: str) -> tuple[Any, Any]:
    """A model and its feature extractor."""
    import torch
    import transformers as hf

    torch.manual_seed(7)
    if kind == "audio-spectrogram-transformer":
        config = hf.ASTConfig(**SMALL, max_length=1024, num_mel_bins=128)
        return hf.ASTModel(config), hf.ASTFeatureExtractor()
    if kind in ("clap", "clap_fused", "clap_audio_model"):
        audio: dict[str, Any] = {"patch_embeds_hidden_size": 8, "depths": [1, 1, 1, 1], "hidden_size": 64}
        audio |= {"num_attention_heads": [1, 1, 2, 2], "projection_dim": 12, "enable_fusion": kind == "clap_fused"}
        extractor = hf.ClapFeatureExtractor(truncation="fusion" if kind == "clap_fused" else "rand_trunc")
        if kind == "clap_audio_model":
            return hf.ClapAudioModelWithProjection(hf.ClapAudioConfig(**audio)), extractor
        text = SMALL | {"vocab_size": 300, "projection_dim": 12, "max_position_embeddings": 40}
        return hf.ClapModel(hf.ClapConfig(audio_config=audio, text_config=text, projection_dim=12)), extractor
    if kind == "whisper":
        names = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
        names |= {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "vocab_size": 60}
        tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
        return hf.WhisperModel(hf.WhisperConfig(**names, **tokens)), hf.WhisperFeatureExtractor()
    if kind == "wav2vec2-bert":
        config = hf.Wav2Vec2BertConfig(**SMALL, vocab_size=8, conv_depthwise_kernel_size=3)
        return hf.Wav2Vec2BertModel(config), hf.SeamlessM4TFeatureExtractor(feature_size=80, num_mel_bins=80, stride=2)
    if kind == "pe_audio_encoder":
        coder = {"encoder_hidden_size": 4, "downsampling_ratios": [4, 6, 8, 10], "hidden_size": 64, "codebook_dim": 8}
        config = hf.PeAudioEncoderConfig(**SMALL, num_key_value_heads=2, head_dim=8, dac_config=coder)
        return hf.PeAudioEncoder(config), hf.PeAudioFeatureExtractor()
    of = {
        "wav2vec2": (hf.Wav2Vec2Config, hf.Wav2Vec2Model, {}),
        "wav2vec2_normed": (hf.Wav2Vec2Config, hf.Wav2Vec2Model, NORMED),
        "hubert": (hf.HubertConfig, hf.HubertModel, {}),
        "wavlm": (hf.WavLMConfig, hf.WavLMModel, NORMED),
        "data2vec-audio": (hf.Data2VecAudioConfig, hf.Data2VecAudioModel, {"conv_pos_kernel_size": 3}),
        "sew": (hf.SEWConfig, hf.SEWModel, {"squeeze_factor": 2}),
        "unispeech": (hf.UniSpeechConfig, hf.UniSpeechModel, {}),
        "unispeech-sat": (hf.UniSpeechSatConfig, hf.UniSpeechSatModel, {}),
    }
    config_class, model_class, changes = of[kind]
    extractor = hf.Wav2Vec2FeatureExtractor(return_attention_mask="normed" in kind or kind == "wavlm")
    return model_class(config_class(**(SPEECH | changes))), extractor


@functools.cache
def hub_folder(kind: str) -> Path:
    """Written once a process into a folder that goes when the process ends."""
    folder = Path(_folder().name) / kind
    model, extractor = made(kind)
    model.save_pretrained(folder)
    extractor.save_pretrained(folder)
    if kind in ("clap", "clap_fused"):
        tokenizer().save_pretrained(folder)
    return folder


def tokenizer() -> Any:
    """RoBERTa's kind, of 300 tokens."""
    import transformers
    from tokenizers import ByteLevelBPETokenizer

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made = ByteLevelBPETokenizer()
    made.train_from_iterator(["a dog barks", "a deep tone sounds"], 300, 1, special_tokens=special)
    with tempfile.TemporaryDirectory() as folder:
        made.save_model(folder)
        return transformers.RobertaTokenizerFast.from_pretrained(folder, model_max_length=512)


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="hub-")
