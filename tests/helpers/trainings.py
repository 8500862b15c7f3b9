"""Trainings by several processes and by one, which is the reference."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from several import ROOT, TORCHRUN

STEPS = 20
NT_XENT = {"kind": "nt_xent", "weight": 1, "temperature": 0.1}
BANDS = {"kind": "logmel_slaney", "sample_rate": 16_000, "bands": 64, "window_seconds": 0.04, "hop_seconds": 0.02}
BANDS |= {"lowest": 0.0, "highest": 8_000.0}
CRNN = {"kind": "crnn", "experts": {"logmel": BANDS}, "hidden": 12, "dropout": 0.0, "embedding": "mean"}
Content = dict[str, Any]


def content(manifest: Path, folder: Path, audio: Mapping[str, Any] | None = None, **stage: Any) -> Content:
    """A recipe of 20 steps without dropout, with a state after each epoch. audio: changes of the encoder."""
    watched = {"data": ["validation"], "metrics": ["loss", "mAP@10"], "keep": 1}
    settings = {"epochs": STEPS // 4, "steps_per_epoch": 4, "batch_size": 7, "monitor": watched, "save_minutes": None}
    made = tiny.recipe(manifest, folder, only=tiny.stage(**(settings | stage)))
    made["model"]["audio"] |= {"dropout": 0.0, **(audio or {})}
    made["model"]["text"]["dropout"] = 0.0
    made["rank"] = {}
    return made


def lines(run: Path) -> list[Content]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights(run: Path, stage: str) -> torch.Tensor:
    """All of a stage's, but for the bias of keys in attention: a softmax does not see it, so that its gradient is
    nothing but rounding, of which AdamW makes full steps."""
    found: dict[str, torch.Tensor] = torch.load(run / stage / "last.pt", weights_only=True)["model"]
    seen = []
    for name, value in found.items():
        if name.endswith("self_attn.in_proj_bias"):
            queries, _, values = value.chunk(3)
            value = torch.cat([queries, values])
        seen.append(value.double().flatten())
    return torch.cat(seen)


def assert_alike(one: Path, other: Path, loose: float = 1) -> None:
    """Training losses to 1e-6 of their size, final weights to 1e-5 of theirs, a stage together, and each to 1e-4; all
    times `loose`."""
    before, after = lines(one), lines(other)
    assert [(a["stage"], a["step"]) for a in after] == [(a["stage"], a["step"]) for a in before]
    for a, b in zip(before, after, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-6 * loose, abs=1e-6), one.name
        assert b["validation"] == pytest.approx(a["validation"], rel=1e-4 * loose), one.name
    for stage in {line["stage"] for line in before}:
        expected, found = weights(one, stage), weights(other, stage)
        assert (found - expected).norm() <= 1e-5 * loose * expected.norm(), one.name
        assert (found - expected).abs().max() <= 1e-4 * loose, one.name


def started(recipe: Path, run: Path, processes: int) -> "subprocess.Popen[str]":
    """torchrun with `train`."""
    command = [*TORCHRUN, "--nproc-per-node", str(processes), "-m", "system", "run", str(recipe)]
    command += ["--until=training", "--out", str(run), "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for(what: Callable[[], object], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.02)


def epochs(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0
