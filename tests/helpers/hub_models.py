"""Tiny models of the hub with random weights, saved to a folder as published ones are."""

import functools
import tempfile
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


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
    return _pe_audio(kind), hf.PeAudioFeatureExtractor()


@functools.cache
def hub_folder(kind: str) -> Path:
    """Written once a process into a folder that goes when the process ends."""
    folder = Path(_folder().name) / kind
    model, extractor = made(kind)
    model.save_pretrained(folder)
    extractor.save_pretrained(folder)
    if kind in ("clap", "clap_fused", "pe_audio", "pe_audio_video", "pe_audio_frame"):
        tokenizer().save_pretrained(folder)
    if kind == "pe_audio_video":
        _as_part_of_pe_av(folder)
    return folder


def _pe_audio(kind: str) -> Any:
    """PE's audio and text in the tiny sizes of the goldens, with norms, scale and bias that are not neutral."""
    import torch
    import transformers as hf

    coder = {"encoder_hidden_size": 4, "downsampling_ratios": [2, 8, 10, 12], "hidden_size": 64, "codebook_dim": 8}
    text = SMALL | {"model_type": "modernbert", "hidden_size": 12, "vocab_size": 300, "pad_token_id": 1}
    text |= {"cls_token_id": 0, "bos_token_id": 0, "eos_token_id": 2, "sep_token_id": 2}
    audio = SMALL | {"num_key_value_heads": 2, "head_dim": 8, "dac_config": coder}
    config = hf.PeAudioConfig(audio_config=audio, text_config=text)
    model = (hf.PeAudioFrameLevelModel if kind == "pe_audio_frame" else hf.PeAudioModel)(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.mul_(15.0) if value.ndim > 1 and "dac" not in name else value.add_(0.2 * torch.randn_like(value))
        model.text_audio_logit_scale.fill_(2.0)
        model.text_audio_logit_bias.fill_(-1.0)
    return model


def _as_part_of_pe_av(folder: Path) -> None:
    """Rewrites a folder of PeAudioModel as published PE-AV models are: audio and text inside of a larger model.

    PeAudioVideoModel itself needs timm. Its text model is stored once, outside of the audio part.
    """
    import json

    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    renamed = {key if key.startswith("text_model.") else f"audio_model.{key}": one for key, one in tensors.items()}
    renamed |= {"audio_video_logit_scale": torch.ones(1), "video_model.video_head.proj.weight": torch.ones(2, 2)}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    both = {"audio_config": config.pop("audio_config"), "hidden_size": 16, "model_type": "pe_audio_video_encoder"}
    config |= {"model_type": "pe_audio_video", "architectures": ["PeAudioVideoModel"], "audio_video_config": both}
    (folder / "config.json").write_text(json.dumps(config))


def pe_oracle(kind: str, text: str) -> tuple[Any, Any, Any]:
    """The library's model with its text state before the final norm, and the ids and mask of a text."""
    import torch
    import transformers

    folder = hub_folder(kind)
    model = getattr(transformers, "PeAudioFrameLevelModel" if kind == "pe_audio_frame" else "PeAudioModel")
    made = model.from_pretrained(folder).eval()
    made.text_model.final_norm = torch.nn.Identity()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)([text], return_tensors="pt")
    return made, tokens["input_ids"], tokens["attention_mask"]


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
