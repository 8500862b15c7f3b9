"""The log-mel of the DCASE 2022 baseline, at 16 kHz."""

from typing import Any


def slaney(bands: int = 64) -> dict[str, Any]:
    settings = {"kind": "logmel_slaney", "sample_rate": 16_000, "bands": bands, "window_seconds": 0.04}
    return {"logmel": settings | {"hop_seconds": 0.02, "lowest": 12, "highest": 8_000}}
