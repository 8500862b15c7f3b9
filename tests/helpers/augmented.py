"""Files that training data are changed by, for the tiny world, and runs that a kill interrupts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny

from data_tools.manifest import Clip, read_manifest
from data_tools.tables import write_table
from system.__main__ import main


def clip(name: str, *captions: str, source: str = "own") -> Clip:
    return Clip(id=f"{source}/train/{name}", file_name=name, path="none", captions=list(captions), source=source)


def table(path: Path, header: Sequence[str], *rows: Sequence[object]) -> Path:
    write_table(path, header, rows)
    return path


ALTERNATIVES = ("clip", "caption", "alternative")


def alternatives(world: Path, path: Path) -> Path:
    """Two alternatives for every caption of the development clips."""
    clips = [one for one in read_manifest(world) if one.split == "development"]
    rows = [
        (one.id, index, f"{beginning} {caption.lower().rstrip('.')}")
        for one in clips
        for index, caption in enumerate(one.captions)
        for beginning in ("it seems that", "apparently")
    ]
    return table(path, ALTERNATIVES, *rows)


def recipe(world: Path, folder: Path, augment: dict[str, Any] | None, **changes: Any) -> Path:
    """A recipe of one stage with these augmentations, in the folder."""
    content = tiny.recipe(world, folder, only=tiny.stage(**({"augment": augment} if augment else {}) | changes))
    return tiny.write_recipe(folder / "augmented.yaml", content)


def killed_and_resumed(path: Path, out: Path, at_step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train a recipe in a process that is interrupted in a step, then again to the end."""
    from system.training import train

    gradients: Callable[..., Any] = train.add_gradients
    calls: list[int] = []

    def broken_off(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == at_step:
            raise KeyboardInterrupt
        return gradients(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(train, "add_gradients", broken_off)
        assert main(["run", "--until=training", str(path), "--out", str(out)]) == 130
    assert len(calls) == at_step
    assert main(["run", "--until=training", str(path), "--out", str(out)]) == 0
