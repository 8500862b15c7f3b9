"""A run with its reports and their content, and a participant's description of a package."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from outcomes import without_checksums

from submission.__main__ import main
from submission.formats.score_matrix import ScoreMatrix, read_scores, write_scores
from system.__main__ import main as system_main

HARM = " <script>document.title='harmed'</script>\"'&amp; .wav"


def make_run(folder: Path) -> Path:
    """A finished run of two experts and two stages with a relaxed loss; three ranked entries."""
    content = tiny.recipe(
        tiny.make_world(folder / "world", tiny.SIZES),
        folder,
        pretrain=tiny.stage(epochs=1, captions_per_clip=1, losses=tiny.RELAXED),
        finetune=tiny.stage(
            epochs=1,
            losses=tiny.RELAXED,
            start_from={"kind": "stage", "stage": "pretrain", "checkpoint": "last"},
        ),
    )
    experts = content["model"]["audio"]["experts"]
    experts["coarse"] = experts["logmel"] | {"bands": 16}
    content["relevance"] = tiny.relevance()
    entry = content["rank"].pop("evaluation")
    mean = {"kind": "mean", "of": ["last", "best"], "edition": 2022, "csv": False}
    content["rank"] = {"last": entry | {"checkpoint": "last", "edition": 2025}, "best": entry, "mean": mean}
    recipe = tiny.write_recipe(folder / "tiny.yaml", content)
    assert system_main(["run", str(recipe), "--out", str(folder / "run")]) == 0
    return without_checksums(folder / "run")


def about(systems: int = 4, **changes: Any) -> dict[str, Any]:
    affiliation = {"abbreviation": "U_X", "institute": "University X", "department": None, "location": "Town, Land"}
    author = {"lastname": "de la Cruz", "firstname": "Ana", "email": "ana@example.org", "affiliation": affiliation}
    names = [{"name": f"System {n}", "abbreviation": f"sys{n}"} for n in range(1, systems + 1)]
    sources = {"world": {"url": None}}
    return {"authors": [author | {"corresponding": True}, author], "systems": names, "sources": sources} | changes


def change(path: Path, edit: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def rescore(run: Path, edit: Callable[[ScoreMatrix], ScoreMatrix], entry: str = "best") -> None:
    path = run / f"scores/{entry}.npy"
    matrix = read_scores(path)
    matrix = edit(replace(matrix, values=np.array(matrix.values)))
    write_scores(path, matrix)


VOID = {"meta", "link", "img"}  # they have no end


class Read(HTMLParser):
    """Content of a page: its tags, its text outside code, the names of clips, and the audio."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.names: list[str] = []
        self._inside: list[str] = []
        self.html = path.read_text(encoding="utf-8")
        self.feed(self.html)
        self.audio: list[str] = json.loads(re.findall(r'id="audio">(.*?)</script>', self.html, re.DOTALL)[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        self.tags.append((tag, own))
        if tag not in VOID:
            self._inside.append(own.get("class", tag))

    def handle_endtag(self, tag: str) -> None:
        self._inside.pop()

    def handle_data(self, data: str) -> None:
        inside = self._inside[-1] if self._inside else ""
        if inside == "name":
            self.names.append(data)
        if inside not in ("script", "style"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.tags if name == tag]


def report(run: Path, *more: object, entry: str = "best") -> Read:
    out = run / "page.html"
    assert main(["report", f"{run}:{entry}", *map(str, more), "--out", str(out)]) == 0
    return Read(out)
