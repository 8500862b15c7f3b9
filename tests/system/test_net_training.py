"""What training does, seen from outside: losses, validation and learning rates as literals."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from threads import one_thread  # noqa: F401  a fixture
from trainings import NT_XENT

from system.__main__ import main

pytestmark = pytest.mark.usefixtures("one_thread")

# Without dropout. Limiting the vector units to AVX2 or SSE4 moves the values by at most 3.2e-6 of their size.
TOLERANCE = 5e-5
EXPECTED: dict[str, list[tuple[float, float, float]]] = json.loads(
    (Path(__file__).parent / "net_training.json").read_text()
)

PLATEAU = {"kind": "plateau", "metric": "loss", "factor": 0.1, "patience": 0, "threshold": 10.0, "min_lr": 1e-6}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"only": tiny.stage()},
    "chunks": {"only": tiny.stage(grad_cache_chunk=3)},
    "two stages": {
        "pretrain": tiny.stage(captions_per_clip=1),
        "finetune": tiny.stage(
            epochs=6,
            start_from={"kind": "stage", "stage": "pretrain", "checkpoint": "loss"},
            losses=tiny.RELAXED,
            optimizer={"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01, "lr_by_part": {"text": 1e-4}},
            schedule=PLATEAU,
            stop={"kind": "early_stopping", "metric": "m1", "epochs": 2},
        ),
    },
    "pairs": {
        "only": tiny.stage(
            unit="pair",
            captions_per_clip=None,
            losses=[NT_XENT],
            schedule={
                "kind": "epochs",
                "shape": "cosine",
                "start_lr": 0,
                "floor_lr": 1e-7,
                "warmup_epochs": 1,
                "until_epoch": 2,
            },
        )
    },
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return tiny.make_world(tmp_path_factory.mktemp("world"), tiny.SIZES)


def trained(manifest: Path, folder: Path, name: str) -> list[tuple[float, float, float]]:
    """Training loss, validation loss and learning rate of each epoch."""
    content = tiny.recipe(manifest, folder, **SETTINGS[name])
    content["model"]["audio"]["dropout"] = content["model"]["text"]["dropout"] = 0.0
    content["rank"] = {}
    if name == "two stages":
        content["relevance"] = tiny.relevance()
    path = tiny.write_recipe(folder / "recipe.yaml", content)
    assert main(["run", "--until=training", str(path), "--out", str(folder / "run"), "--device", "cpu"]) == 0
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return [(line["loss"], line["validation"]["loss"], line["lr"]) for line in lines]


@pytest.mark.parametrize("name", SETTINGS)
def test_losses_and_rates_of_each_epoch_stay_as_they_are(name, manifest, tmp_path):
    found = trained(manifest, tmp_path, name)
    assert len(found) == len(EXPECTED[name])
    for epoch, expected in zip(found, EXPECTED[name], strict=True):
        assert epoch == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
        assert epoch[2] == pytest.approx(expected[2], rel=1e-9)
