"""Measure and print times."""

import time
from collections.abc import Callable, Sequence

import torch
from torch.amp.grad_scaler import GradScaler

from system.models.batch import Batch
from system.models.retrieval import RetrievalModel
from system.recipe import schema
from system.training.step import add_gradients


def best_seconds(works: Sequence[Callable[[], object]], times: int) -> list[float]:
    """The shortest time of each, measured in turns, so that what else the machine does falls on all alike."""
    best = [float("inf")] * len(works)
    for work in works:
        work()
    for _ in range(times):
        for n, work in enumerate(works):
            began = time.perf_counter()
            work()
            best[n] = min(best[n], time.perf_counter() - began)
    return best


def seconds_a_step(model: RetrievalModel, batch: Batch, stage: schema.Stage, precision: str) -> float:
    """The median of 12 updates on a GPU, of 3 on a CPU, where the model and the batch are."""
    device, taken = model.device, []
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = GradScaler(device.type, enabled=precision == "fp16")
    for _ in range(12 if on_gpu else 3):
        began = time.perf_counter()
        optimizer.zero_grad()
        add_gradients(model, batch, stage, precision, scaler)
        scaler.step(optimizer)
        scaler.update()
        if on_gpu:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return sorted(taken)[len(taken) // 2]


def report(name: str, ours: float, other: float, what: str) -> None:
    print(f"\n{name}: {ours * 1e3:.1f} ms, {what}: {other * 1e3:.1f} ms, ratio {other / ours:.2f}")
