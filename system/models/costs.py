"""What an encoder takes, and what layers that many have do: parameters, and memory and operations of a training step.
Never imports torch."""

from dataclasses import dataclass

TOKENS = 16  # of a caption: 15.3 on average in Clotho, 12.0 in AudioCaps; sorted chunks add one in 25
TRAINING = 6  # operations of a weight at a place: a multiplication and an addition, forward once and backward twice


@dataclass(frozen=True)
class Cost:
    """An encoder, and what a training step takes for one clip or caption.

    trainable: parameters by part. frozen: parameters that are computed with, not trained. activations: values that
    wait for the backward pass in the step's precision; exact: those that are float32 in any. flops: operations,
    forward and backward.
    """

    trainable: dict[str, int]
    activations: float
    flops: float
    exact: float = 0.0
    frozen: int = 0


def encoder_parameters(width: int, layers: int, ffn_dim: int, positions: int) -> int:
    """Positions (two rows more than positions, as BART), a norm, and per layer attention, feed-forward and two
    norms."""
    return (positions + 2) * width + 2 * width + layers * layer_parameters(width, ffn_dim)


def layer_parameters(width: int, ffn_dim: int) -> int:
    return 4 * (width + 1) * width + (width + 1) * ffn_dim + (ffn_dim + 1) * width + 4 * width


def block_activations(tokens: float, width: int, ffn_dim: int) -> float:
    """Of a block of attention in one piece, which keeps no products of pairs of places, and feed-forward: half of 8
    values of its width and 2 of its feed-forward a place, since memory is reckoned at twice what is kept. Measured:
    tests/benchmarks/README.md."""
    return tokens * (4 * width + ffn_dim)


def encoder_activations(frames: float, width: int, layers: int, ffn_dim: int, heads: int) -> float:
    """A layer keeps about 14 values of its width, 3 of its feed-forward and 3 per head and pair of places, for every
    place."""
    return layers * frames * (14 * width + 3 * ffn_dim + 3 * heads * frames)


def encoder_flops(frames: float, width: int, layers: int, ffn_dim: int) -> float:
    """Six a weight and place, and the attention's products."""
    return TRAINING * layers * frames * (4 * width * width + 2 * width * ffn_dim + 2 * frames * width)


def mlp_parameters(inputs: int, hidden: int, out: int) -> int:
    return (inputs + 1) * hidden + (hidden + 1) * out


def gru_parameters(inputs: int, hidden: int) -> int:
    """Both directions: three gates of weights on inputs and on the state, with two biases each."""
    return 2 * 3 * hidden * (inputs + hidden + 2)


def gru_flops(frames: float, inputs: int, hidden: int) -> float:
    return TRAINING * frames * gru_parameters(inputs, hidden)
