"""The figures of a run show what its metrics hold."""

import json
from typing import Any

import pytest
from matplotlib.figure import Figure

from system.runs import plots
from system.runs.folder import Run

LINES = [
    {"stage": stage, "epoch": n, "loss": 3.0 - n, "violations": 0.5, "violations_relaxed": 0.1 * n, "positive": 0.6,
     "hardest_negative": 0.3, "seconds": 1.0, "validation": {"loss": 4.0 - n, "m1": 0.2 * n}}
    for stage, n in (("pretrain", 1), ("pretrain", 2), ("finetune", 1))
]  # fmt: skip


pytestmark = pytest.mark.usefixtures("curves")


def test_figures_draw_every_metric_with_its_label(tmp_path, monkeypatch):
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.setdefault(path.stem, figure))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    plots.draw_run(Run(tmp_path))
    assert set(drawn) == {"loss", "violations", "similarity", "accuracy"}

    def shown(figure: Figure) -> dict[str, list[float]]:
        return {
            str(line.get_label()): list(map(float, line.get_ydata()))  # type: ignore[arg-type]
            for line in figure.axes[0].lines
            if not str(line.get_label()).startswith("_")
        }

    assert shown(drawn["loss"]) == {"training": [2, 1, 2], "validation": [3, 2, 3]}
    assert shown(drawn["violations"]) == {"full margin": [0.5] * 3, "relaxed margin": pytest.approx([0.1, 0.2, 0.1])}
    assert shown(drawn["similarity"]) == {"matching pairs": [0.6] * 3, "hardest negatives": [0.3] * 3}
    assert shown(drawn["accuracy"]) == {"m1": pytest.approx([0.2, 0.4, 0.2])}
    (stage_line,) = [line for line in drawn["loss"].axes[0].lines if str(line.get_label()).startswith("_")]
    assert list(stage_line.get_xdata()) == [2.5, 2.5]
    assert drawn["loss"].axes[0].get_title() == "pretrain, then finetune"


def test_run_without_ranking_loss_has_no_plot_of_margin_violations(tmp_path):
    lines = [{"stage": "only", "epoch": 1, "seconds": 1.0, "loss": 1.0, "validation": {"loss": 2.0}}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [path.name for path in plots.draw_run(Run(tmp_path))] == ["loss.svg"]
    assert "<svg" in (tmp_path / "figures/loss.svg").read_text()[:400]
