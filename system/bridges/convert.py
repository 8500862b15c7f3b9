"""Convert published weights to the kit's formats.

The DCASE 2025 baseline and SALSA (2024) are published as checkpoints of Lightning, M2D-CLAP as a zip file. Their tensor
names were taken from the published code (M2D: github.com/nttcslab/m2d at f0c4128); the conversions were not tested on
the published files.
"""

from argparse import Namespace
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
import torch

from data_tools.errors import KitError
from data_tools.files import checksum, replacing, require_file
from system.audio.checkpoint import load_checkpoint
from system.bridges.export import export_model
from system.models.retrieval import RetrievalModel
from system.models.text.published import load_tokens
from system.models.text.words import write_word_vectors
from system.recipe import schema
from system.recipe.load import load_recipe
from system.runs.checkpoints import load_tensors
from system.runs.open import Trained, build_model, model_facts

ADDRESSES = {
    "dcase2025_baseline": "https://cloud.cp.jku.at/index.php/s/6ZTQ3mcwk9AAS4i",
    "salsa2024": (
        "https://cloud.cp.jku.at/index.php/s/ZZkWXQ7f3aXRXYW, in five parts: "
        "cat passt_roberta.ckpt.* > passt_roberta.ckpt"
    ),
}
# Ours by theirs, of the baseline and of SALSA; compiled models have one level more, which is left out.
PREFIXES = {
    "audio_embedding_model.model.model.": "audio.network.",
    "audio_projection.": "audio.head.0.",
    "project_audio.0.": "audio.head.0.",
    "text_embedding_model.": "text.trained.0.model.",
    "sentence_embedding_model.": "text.trained.0.model.",
    "text_projection.": "text.head.",
    "project_sentence.0.": "text.head.",
}
YAMNET_SHA256 = "469be6a3421cbc52cf97e9f2f966cba984198e8e7af9854d68b3e3ebb1e04194"
COMPILED = "_orig_mod."
LIGHTNING = (
    "lightning.fabric.utilities.data.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "lightning.pytorch.utilities.parsing.AttributeDict",
    "pytorch_lightning.utilities.parsing.AttributeDict",
)
M2D_TEXT, M2D_WORDS = "text_encoder.", "embeddings.word_embeddings.weight"  # start and end of a tensor's name


def convert_file(
    file: Path, out: Path, recipe: Path | None = None, text: str | None = None, words: bool = False,
    changes: list[str] | None = None,
) -> str:  # fmt: skip
    """Convert a published file, and say what was written.

    Args:
        file: yamnet.tflite; with `recipe`, a checkpoint of PyTorch Lightning; with `text`, the file of M2D-CLAP; with
            `words`, the folder or hub name of a BERT-like model with whole words in lower case.
        text: Folder or hub name of the text model that M2D-CLAP fine-tuned: google-bert/bert-base-uncased.
        changes: Changed settings of the recipe.
    """
    if recipe is not None:
        export_model(open_published(file, load_recipe(recipe, changes).recipe), out)
        return f"wrote the model of {recipe} with the weights of {file} to {out}"
    if text is not None:
        return f"wrote {_convert_m2d_text(file, text, out)} tensors of the text encoder in {file} to {out}"
    if words:
        return _convert_words(str(file), out)
    if file.suffix == ".ckpt":
        raise KitError(f"{file}: a checkpoint needs the recipe of its model; name the recipe with --recipe")
    return _convert_yamnet(file, out)


def _convert_yamnet(file: Path, out: Path) -> str:
    if out.suffix != ".npz":
        raise KitError(f"--out {out}: must end in .npz")
    layers = read_layers(file)
    with replacing(out) as temporary, temporary.open("wb") as opened:
        np.savez_compressed(opened, **layers)  # type: ignore[arg-type]
    return f"wrote {len(layers)} arrays of weights and biases to {out}"


def _convert_words(model: str, out: Path) -> str:
    """Write the input embeddings of whole words.

    They serve as word vectors in place of Word2Vec's.
    """
    if out.suffix != ".bin":
        raise KitError(f"--out {out}: must end in .bin")
    transformer = load_tokens(model, "mean")[0]
    table = transformer.model.get_input_embeddings().weight.detach().float().cpu().numpy()
    special = set(transformer.tokenizer.all_special_tokens)
    tokens = sorted(transformer.tokenizer.get_vocab().items(), key=lambda item: item[1])
    words = {token: table[number] for token, number in tokens if token not in special and token.isalnum()}
    if not words:
        raise KitError(f"{model} has no token that is a whole word; use a model with BERT's vocabulary")
    write_word_vectors(out, words)
    return f"wrote {len(words):,} words of dimension {table.shape[1]} to {out}"


def _convert_m2d_text(checkpoint: Path, model: str, folder: Path) -> int:
    """Write M2D-CLAP's text encoder, without pooler.

    The folder has the tokenizer of `model`, and the weights of the checkpoint.

    Returns:
        The number of written tensors.
    """
    if folder.exists():
        raise KitError(f"{folder} already exists; remove it, or name another folder with --out")
    weights = load_checkpoint(checkpoint)
    found = [key for key in weights if key.startswith(M2D_TEXT) and key.endswith(M2D_WORDS)]
    if len(found) != 1:
        raise KitError(
            f"{checkpoint} has no text encoder ({M2D_TEXT}...{M2D_WORDS}); name an M2D-CLAP file with TI in it"
        )
    prefix, transformer = found[0].removesuffix(M2D_WORDS), load_tokens(model, "mean")[0]
    network = transformer.model
    tensors = {key: value for key, value in network.state_dict().items() if value.is_floating_point()}
    with torch.no_grad():
        for key, value in tensors.items():
            new = weights.get(prefix + key)
            if new is None or new.shape != value.shape:
                raise KitError(f"{checkpoint}: the tensor {prefix}{key} is missing or has another shape")
            value.copy_(new)
    network.save_pretrained(folder)
    transformer.tokenizer.save_pretrained(folder)
    return len(tensors)


def open_published(path: Path, recipe: schema.Recipe) -> Trained:
    """Build a recipe's model with published weights.

    Tensors without a counterpart in the model are ignored: classifiers, a temperature, and unused parts of SALSA.

    Raises:
        KitError: The file is missing.
        KitError: It is not a checkpoint, lacks a tensor of the recipe's model, or has a tensor of another shape.
    """
    known = [f"{name}: {address}" for name, address in ADDRESSES.items()]
    require_file(path, f"fetch the checkpoint from its address ({'; '.join(known)})")
    tensors = read_lightning(path)
    model = build_model(recipe, [])
    load_tensors(model, rename_tensors(tensors, model, path), path)
    return Trained(model, recipe, model_facts(model, recipe, path.name), path.parent / "nothing")


def read_lightning(path: Path) -> dict[str, torch.Tensor]:
    """Read a checkpoint's tensors.

    Lightning's settings in it are read as plain dicts, but not used.
    """
    with torch.serialization.safe_globals([*((OrderedDict, name) for name in LIGHTNING), Namespace, PosixPath]):
        return load_checkpoint(path)


def rename_tensors(tensors: Mapping[str, torch.Tensor], model: RetrievalModel, path: Path) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors under the model's names.

    Raises:
        KitError: A tensor is missing.
    """
    found = {}
    for key, value in tensors.items():
        key = key.replace(COMPILED, "")
        prefix = next((prefix for prefix in PREFIXES if key.startswith(prefix)), None)
        if prefix is not None:
            found[PREFIXES[prefix] + key.removeprefix(prefix)] = value
    wanted = model.state_dict()
    if missing := sorted(wanted.keys() - found.keys()):
        raise KitError(f"{path}: no weights for {len(missing)} tensors, such as {missing[0]}; give its own --recipe")
    return {name: found[name] for name in wanted}


def read_layers(path: Path) -> dict[str, np.ndarray]:
    """Read the 31 layers of yamnet.tflite.

    8-bit weights are dequantised, (q - zero point) x scale. Arrays have TensorFlow Lite's layout: (out, height, width,
    in) for convolutions, (1, height, width, channels) for depthwise convolutions, and (out, in) for dense layers. The
    first two layers (the DFT of the front-end) have no bias.

    Returns:
        Weights `NN_w` and biases `NN_b` of each layer NN in float32, in the order of the graph.

    Raises:
        KitError: The file is not the public one, or the package `tflite` is not installed.
    """
    require_file(path, "give the path of the public yamnet.tflite")
    if checksum(path) != YAMNET_SHA256:
        raise KitError(f"{path}: not the public yamnet.tflite; fetch it again (sha256 {YAMNET_SHA256[:12]}...)")
    try:
        from tflite import Model
    except ModuleNotFoundError as error:
        raise KitError(f"{path}: needs the package tflite; pip install -e '.[tflite]'") from error
    model = Model.GetRootAsModel(path.read_bytes(), 0)
    return dict(_weights_and_biases(model, model.Subgraphs(0)))


def _weights_and_biases(model: Any, graph: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and values of every weight and bias.

    They come in the order of the graph.
    """
    from tflite import BuiltinOperator as Kind

    operators: dict[Any, list[Any]] = {}
    for operator in (graph.Operators(i) for i in range(graph.OperatorsLength())):
        code = model.OperatorCodes(operator.OpcodeIndex())
        kind = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())  # older files store it in the latter
        kind = "layer" if kind in (Kind.CONV_2D, Kind.DEPTHWISE_CONV_2D, Kind.FULLY_CONNECTED) else kind
        operators.setdefault(kind, []).append(operator)
    # Some 8-bit weights reach their layer through an operator that dequantises them.
    sources = {one.Outputs(0): one.Inputs(0) for one in operators[Kind.DEQUANTIZE]}
    for number, layer in enumerate(operators["layer"]):
        for i, part in enumerate("wb"[: layer.InputsLength() - 1], start=1):
            if layer.Inputs(i) >= 0:
                tensor = graph.Tensors(sources.get(layer.Inputs(i), layer.Inputs(i)))
                yield f"{number:02d}_{part}", _read_values(model, tensor)


def _read_values(model: Any, tensor: Any) -> np.ndarray:
    """Return the values of a tensor as float32.

    8-bit values are dequantised.
    """
    from tflite import TensorType

    dtype = {TensorType.FLOAT32: np.float32, TensorType.INT8: np.int8}[tensor.Type()]
    values = model.Buffers(tensor.Buffer()).DataAsNumpy().view(dtype).reshape(tensor.ShapeAsNumpy())
    if dtype == np.float32:
        return np.array(values)
    scaling = tensor.Quantization()
    return np.array((values.astype(np.float32) - np.float32(scaling.ZeroPoint(0))) * np.float32(scaling.Scale(0)))
