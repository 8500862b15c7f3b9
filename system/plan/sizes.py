"""What each kind of audio encoder takes: parameters, and memory and operations of a training step. Never imports
torch."""

import functools
from dataclasses import dataclass

from system.networks.published import BANDS, CONVOLUTIONS, DIM, HOP, RATE, Convolution
from system.recipe import schema

TRAINING = 6  # operations of a weight at a place: a multiplication and an addition, forward once and backward twice


@dataclass(frozen=True)
class Cost:
    """An encoder, and what a training step takes for one clip or caption.

    trainable: parameters by part. frozen: parameters that are computed with, not trained. kept: values that wait for
    the backward pass in the step's precision; exact: those that are float32 in any. flops: operations, forward and
    backward.
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


def encoder_activations(frames: float, width: int, layers: int, ffn_dim: int, heads: int) -> float:
    """A layer keeps about 14 values of its width, 3 of its feed-forward and 3 per head and pair of places, for every
    place."""
    return layers * frames * (14 * width + 3 * ffn_dim + 3 * heads * frames)


def encoder_flops(frames: float, width: int, layers: int, ffn_dim: int) -> float:
    """Six a weight and place, and the attention's products."""
    return TRAINING * layers * frames * (4 * width * width + 2 * width * ffn_dim + 2 * frames * width)


def mlp_parameters(inputs: int, hidden: int, out: int) -> int:
    return (inputs + 1) * hidden + (hidden + 1) * out


@functools.singledispatch
def audio_size(audio: schema.Audio, out: int, seconds: float, longest: float) -> Cost:
    """Of an encoder with embeddings of `out` values, for clips of `seconds` in batches whose longest has `longest`."""
    raise NotImplementedError(type(audio).__name__)


@audio_size.register
def _(audio: schema.ExpertHeads, out: int, seconds: float, longest: float) -> Cost:
    trainable, activations, exact, flops = {}, 0.0, 0.0, 0.0
    layers = audio.width, audio.layers, audio.ffn_dim
    for name, expert in audio.experts.items():
        linear = (expert.dim + 1) * audio.width + (audio.width + 1) * out
        trainable[name] = linear + encoder_parameters(*layers, audio.max_positions)
        frames = seconds * expert.frames_per_second
        windows = max(1.0, frames / audio.max_positions)
        activations += windows * encoder_activations(frames / windows, *layers, audio.heads)
        exact += frames * expert.dim
        flops += TRAINING * frames * expert.dim * audio.width + encoder_flops(frames, *layers)
    return Cost(trainable, activations, flops, exact)


@audio_size.register
def _(audio: schema.PooledMlp, out: int, seconds: float, longest: float) -> Cost:
    (expert,) = audio.experts.values()
    parameters = mlp_parameters(expert.dim, audio.hidden, out)
    exact = longest * expert.frames_per_second * expert.dim
    return Cost({"mlp": parameters}, 0.0, float(TRAINING * parameters), exact)


@audio_size.register
def _(audio: schema.Panns, out: int, seconds: float, longest: float) -> Cost:
    """Every convolution keeps about two values of its output, for its batch norm and what follows; a frozen network
    holds about three times its largest output. Measured on a CPU, ResNet-38 and BERT, 2 clips of 10 s, 4 of 10 s, 2 of
    30 s: a step's peak is 7, 2, and 1 % above what is reckoned from this."""
    columns = min(longest, audio.max_seconds) * RATE / HOP
    layers = CONVOLUTIONS[audio.network]
    outputs = [layer.outputs * columns * BANDS / layer.scale**2 for layer in layers]
    parameters = 2 * BANDS + sum(_parameters(layer) + 2 * layer.outputs for layer in layers)
    flops = TRAINING * sum(_parameters(layer) * columns * BANDS / layer.scale**2 for layer in layers)
    mlp = mlp_parameters(DIM, audio.hidden, out)
    if audio.trainable:
        return Cost({"network": parameters, "mlp": mlp}, 2 * sum(outputs), flops + TRAINING * mlp)
    return Cost({"network": 0, "mlp": mlp}, 3 * max(outputs), flops / 3 + TRAINING * mlp, frozen=parameters)


def _parameters(layer: Convolution) -> int:
    return layer.inputs * layer.outputs * layer.size**2


@audio_size.register
def _(audio: schema.Crnn, out: int, seconds: float, longest: float) -> Cost:
    """Every convolution keeps about two values of its input, for the batch norm in front of it, and two of its output.
    Measured on a CPU: 8 clips of 30 s take 13 % less memory than is reckoned from this, 32 of 20 s 12 % less; its
    narrow layers reach a third of the operations a second that wide ones do, so a step takes three times as long."""
    (expert,) = audio.experts.values()
    columns = longest * expert.frames_per_second
    inputs, outputs = (1, 32, 128, 128, 128), (32, 128, 128, 128, 128)
    frames = [columns * expert.bands / shrunk for shrunk in (1, 8, 8, 64, 64)]
    rows = list(zip(inputs, outputs, frames, strict=True))
    convolutions = sum(9 * i * o + 2 * i for i, o, _ in rows)
    width = 128 * (expert.bands // 64)
    activations = sum(2 * (i + o) * n for i, o, n in rows) + columns * (3 * audio.hidden + 4 * out)
    flops = TRAINING * sum(9 * i * o * n for i, o, n in rows) + _gru_flops(columns / 4, width, audio.hidden)
    return Cost({"convolutions": convolutions, "gru": _gru_parameters(width, audio.hidden)}, activations, flops)


@audio_size.register
def _(audio: schema.Gru, out: int, seconds: float, longest: float) -> Cost:
    (expert,) = audio.experts.values()
    frames = longest * expert.frames_per_second
    linear = (expert.dim + 1) * audio.width
    activations = frames * (3 * audio.width + 12 * audio.hidden + 4 * out)
    flops = TRAINING * linear * frames + _gru_flops(frames, audio.width, audio.hidden)
    trainable = {"linear": linear, "gru": _gru_parameters(audio.width, audio.hidden)}
    return Cost(trainable, activations, flops, frames * expert.dim)


def _gru_parameters(inputs: int, hidden: int) -> int:
    """Both directions: three gates of weights on inputs and on the state, with two biases each."""
    return 2 * 3 * hidden * (inputs + hidden + 2)


def _gru_flops(frames: float, inputs: int, hidden: int) -> float:
    return TRAINING * frames * _gru_parameters(inputs, hidden)
