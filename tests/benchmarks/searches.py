"""A search page that is served by a process, and clients that search."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode, urlsplit

# In a separate process, like `serve`. The clips' embeddings are random: their values do not change the time.
SERVED = """
import sys
from pathlib import Path
import tiny, torch
from data_tools.manifest import Clip
from system.runs.open import build_model
from system.recipe.load import load_recipe
from served import searching
from system.serve.server import bind, serve
from system.models.embeddings import Embedded

folder, model = Path(sys.argv[1]), sys.argv[2]
content = tiny.recipe(folder / "none.jsonl", folder)
content["model"]["text"] = {
    "kind": "published", "model": model, "dim": 384, "head": "none",
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
search = searching(build_model(recipe, []), clips, Embedded(torch.randn(count, 384, generator=torch.manual_seed(0))))
serve(search, bind(0))
"""


@contextmanager
def serving(root: Path, folder: Path, model: str | Path, kind: str, clips: int) -> Iterator[tuple[str, int]]:
    """A process that serves the page for so many clips: its address and its id. kind: frozen or trainable, of the text
    model."""
    command = [sys.executable, "-c", SERVED, str(folder), str(model), kind, str(clips)]
    path = os.pathsep.join(map(str, (root, root / "tests" / "helpers")))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path})
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[3], process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def latencies(address: str, queries: list[str], clients: int) -> list[float]:
    """Seconds of every search; each client sends its next one as soon as it has its answer."""
    return asyncio.run(_latencies(address, queries, clients))


async def _latencies(address: str, queries: list[str], clients: int) -> list[float]:
    """Plain sockets: an HTTP library for the clients would take as much of the two cores as the server's own."""
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
