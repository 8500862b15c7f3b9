"""Inputs for tests of audio encoders: padded series, and small encoders."""

from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from system.models.audio.crnn import Crnn, CrnnEncoder
from system.models.batch import Series


def expert(dim: int) -> dict[str, Any]:
    settings = {"kind": "logmel", "sample_rate": 16_000, "bands": dim, "window_seconds": 0.04, "hop_seconds": 0.02}
    return {"frozen": settings | {"stack": 1}}


def series(values: list[torch.Tensor]) -> Series:
    return Series(pad_sequence(values, batch_first=True), torch.tensor([len(one) for one in values]))


def slaney(bands: int = 64) -> dict[str, Any]:
    settings = {"kind": "logmel_slaney", "sample_rate": 16_000, "bands": bands, "window_seconds": 0.04}
    return {"logmel": settings | {"hop_seconds": 0.02, "lowest": 12, "highest": 8_000}}


def crnn(**changes: Any) -> CrnnEncoder:
    settings = {"kind": "crnn", "experts": slaney(), "hidden": 6, "dropout": 0.0, "embedding": "frames"}
    torch.manual_seed(2)
    return Crnn.model_validate(settings | changes).build(12)


def frames(*lengths: int, dim: int = 64) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [3 * torch.randn(length, dim) - 10 for length in lengths]
