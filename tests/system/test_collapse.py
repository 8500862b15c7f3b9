"""The collapse watch: by hand, and on a constructed collapse through a whole run."""

import json
import logging

import pytest
import tiny
import torch

from system.__main__ import main
from system.models.embeddings import Embedded
from system.training.validation import collapse_messages, direction_spread, spreads


def test_spread_matches_hand_values_and_ignores_padding():
    assert direction_spread(Embedded(torch.tensor([[1.0, 0], [0, 3]]))) == pytest.approx(0.5)  # cosines 1, 0, 0, 1
    assert direction_spread(Embedded(torch.tensor([[2.0, 1], [4, 2]]))) == pytest.approx(0)
    assert direction_spread(Embedded(torch.tensor([[1.0, 0], [-1, 0]]))) == pytest.approx(1)
    assert direction_spread(Embedded(torch.zeros(3, 2))) == 0
    series = torch.tensor([[[1.0, 0], [0, 1]], [[1, 1], [5, -5]]])
    alike = Embedded(series, torch.tensor([2, 1]))  # means (1, 1) and (1, 1)
    assert direction_spread(alike) == pytest.approx(0, abs=1e-12)
    assert direction_spread(Embedded(series, torch.tensor([2, 2]))) > 0.1


def test_spread_below_1e_5_is_a_collapse():
    anywhere = Embedded(torch.eye(4))
    assert collapse_messages(spreads(anywhere, anywhere)) == []
    nearly_one = Embedded(torch.ones(4, 2) + 0.001 * torch.eye(4)[:, :2])
    (message,) = collapse_messages(spreads(nearly_one, anywhere))
    assert "clips" in message
    # A fresh model on meaningless audio has a spread of 1e-4; below 1e-5 there is one embedding.
    healthy = {"spread_of_clips": 1.1e-5, "spread_of_captions": 0.5}
    assert collapse_messages(healthy) == []
    assert len(collapse_messages(healthy | {"spread_of_clips": 0.9e-5})) == 1
    assert len(collapse_messages(healthy | {"spread_of_clips": 0.5e-5, "spread_of_captions": 0.5e-5})) == 2


@pytest.mark.collapses
def test_collapse_appears_in_log_metrics_and_report(tmp_path, caplog):
    """A rate so high that every weight is thrown far out: all clips end in one direction."""
    manifest = tiny.make_world(tmp_path / "data", {"development": 16, "validation": 8, "evaluation": 16})
    stage = tiny.stage(
        epochs=2,
        optimizer={"kind": "adamw", "lr": 1.0, "weight_decay": 0.0},
        schedule={"kind": "constant", "warmup_steps": 0},
        losses=[{"kind": "ranking", "weight": 1, "margin": 0.2, "relax": "none", "negatives": "hardest"}],
        max_grad_norm=None,
    )
    recipe = tiny.write_recipe(tmp_path / "r.yaml", tiny.recipe(manifest, tmp_path, only=stage))
    with caplog.at_level(logging.WARNING):
        assert main(["run", str(recipe), "--out", str(tmp_path / "run")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["collapsed"]
    assert min(lines[-1]["spread_of_clips"], lines[-1]["spread_of_captions"]) < 1e-5
    assert "COLLAPSED" in caplog.text
    assert "COLLAPSED" in (tmp_path / "run/log.txt").read_text()
    from submission.__main__ import main as submission

    assert submission(["report", str(tmp_path / "run")]) == 0
    assert lines[-1]["collapsed"][0] in (tmp_path / "run/report.html").read_text(encoding="utf-8")
