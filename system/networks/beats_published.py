"""BEATs: web addresses, sizes.

The addresses are those of the published weights; the sizes are those of the network. Never imports torch.

Source: Chen et al., "BEATs: Audio Pre-Training with Acoustic Tokenizers" (2023); github.com/microsoft/unilm, `beats/`
at 768a3c8.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

Padding = Literal["alone", "original"]

# Copies, not checked here: the addresses in github.com/microsoft/unilm, beats/README.md, are reported dead since 2024.
# BEATs_iter3_plus_AS2M.pt has 361,499,833 bytes, its fine-tuned versions 363,145,291.
COPIES = "https://huggingface.co/lpepino/beats_ckpts"
PRETRAINED = "BEATs_iter3_plus_AS2M.pt"
SHA256 = "d43cbfad4d7b56381c061d7a24774f908d4d94c72961f6eb1d9090ff18cd8d34"  # of PRETRAINED, in three copies
LICENCE = "MIT"

RATE = 16_000  # Hz
SCALE = 2.0**15  # factor of waves in [-1, 1]
MEAN, SPREAD = 15.41663, 2 * 6.55582  # of the log-mel
PATCH = 16  # columns and bands of a patch
BAND_PATCHES = 8
HOP = 160  # samples of a column
WINDOW = 400  # samples of a column
PATCH_DIM = 512
DIM = 768
HEADS = 12
FFN_DIM = 3072
BLOCKS = 12
KERNEL, GROUPS = 128, 16  # of the convolution that gives positions
BUCKETS = 320  # of distances
MAX_DISTANCE = 800  # tokens; all greater distances share a bucket
EPS = 1e-5  # of the layer norms
LIMITS = ((PATCH - 1) * HOP + WINDOW) / RATE, 120.0  # seconds; memory grows with the square of the length
PARAMETERS = 90_311_792  # without the predictor

CONFIG = {
    "encoder_layers": BLOCKS,
    "encoder_embed_dim": DIM,
    "encoder_ffn_embed_dim": FFN_DIM,
    "encoder_attention_heads": HEADS,
    "activation_fn": "gelu",
    "layer_norm_first": False,
    "deep_norm": True,
    "input_patch_size": PATCH,
    "embed_dim": PATCH_DIM,
    "conv_bias": False,
    "conv_pos": KERNEL,
    "conv_pos_groups": GROUPS,
    "relative_position_embedding": True,
    "num_buckets": BUCKETS,
    "max_distance": MAX_DISTANCE,
    "gru_rel_pos": True,
}


def find_address(path: Path) -> str:
    """Return the web address of a published weight file, for messages. path: A path that ends in its name.

    >>> find_address(Path("weights/BEATs_iter3_plus_AS2M.pt"))
    'https://huggingface.co/lpepino/beats_ckpts/resolve/main/BEATs_iter3_plus_AS2M.pt'
    """
    if path.name.startswith("BEATs_iter"):
        return f"{COPIES}/resolve/main/{path.name}"
    return f"{COPIES} (keep the file's name)"


def frame_count(seconds: float) -> int:
    """Return the number of frames of a segment, 62 for 10 s: a frame is 160 ms, and the last one must be complete."""
    return max(1, ((round(seconds * RATE) - WINDOW) // HOP + 1) // PATCH)


def config_problems(config: Mapping[str, Any]) -> list[str]:
    """List the settings of a checkpoint's `cfg` that differ from those of this network. Dropouts are not compared."""
    return [
        f"its setting {key} is {config[key]!r}, not {needed!r}" if key in config else f"it has no setting {key}"
        for key, needed in CONFIG.items()
        if key not in config or config[key] != needed
    ]
