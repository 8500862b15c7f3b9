"""The shipped recipes: frames, parameters, updates, losses and learning rates of published systems, and windows."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_tools.moments import Moment
from system.__main__ import main
from system.models.scores import MomentScore
from system.moments.windows import Decoding, Grid
from system.ranking.windows import QueryFrames, find_windows, fit_score
from system.recipe.load import load_recipe
from system.training.schedule import learning_rate

ROOT = Path(__file__).resolve().parents[2]
# Frames (values, Hz of the audio) of each expert, parameters by part (without those of a text model that is not here),
# and (updates, items) of each stage.
SEEDS_MEAN: dict[str, dict[str, object]] = {
    "take_it_easy/take_it_easy": {
        "frames": [(512, 48000), (2048, 16000), (512, 16000), (128, 16000)],
        "parameters": [1_547_392, 1_940_608, 1_547_392, 1_449_088, 22_713_216, 29_197_696],
        "stages": [(4608, 512), (128, 512)],
    },
    "metric_learning/clotho": {
        "frames": [(1, 32000)],
        "parameters": [68_507_072, 6_294_528, 74_801_600],
        "stages": [(39_950, 24)],
    },
    "negative_sampling/clotho": {
        "frames": [(64, 44100)],
        "parameters": [480_354, 252_000, 0, 732_354],
        "stages": [(71_880, 32)],
    },
    "baseline2022": {"frames": [(64, 44100)], "parameters": [480_354, 252_000, 0, 732_354], "stages": [(89_850, 32)]},
}


@pytest.mark.parametrize("name", SEEDS_MEAN)
def test_published_system_has_its_frames_parameters_and_updates(name, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    main(["check", f"recipes/{name}.yaml"])
    plan = capsys.readouterr().out
    parameters = re.search(r"^ *parameters +(.*)$", plan, re.MULTILINE)
    assert parameters

    def number(text: str) -> int:
        return int(text.replace(",", ""))

    assert {
        "frames": [
            (int(values), int(rate)) for values, rate in re.findall(r"(\d+)-d, [\d.]+ frames/s at (\d+) Hz", plan)
        ],
        "parameters": [number(one) for one in re.findall(r"(?<=[ ])[\d,]*\d(?=[,; ]|$)", parameters[1])],
        "stages": [(number(many), number(size)) for many, size in re.findall(r"([\d,]+) updates of ([\d,]+) ", plan)],
    } == SEEDS_MEAN[name]


# Per stage: its losses, its steps in an epoch, and the rate of each part at the first, the middle and the last step.
# Two recipes of moments have as many steps as their data, here 100.
STORED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "net_recipes.json").read_text())


@pytest.mark.parametrize("name", STORED)
def test_published_system_has_its_losses_and_learning_rates(name):
    recipe = load_recipe(ROOT / f"recipes/{name}.yaml").recipe
    assert list(recipe.stages) == list(STORED[name])
    for stage_name, expected in STORED[name].items():
        stage = recipe.stages[stage_name]
        losses = [one.model_dump() for one in stage.losses]
        assert losses == [one | expected_one for one, expected_one in zip(losses, expected["losses"], strict=True)]
        bases = {"rest": stage.optimizer.lr, **stage.optimizer.lr_by_part}
        steps = stage.epochs * expected["steps"]
        found: dict[str, list[float]] = {part: [] for part in bases}
        for step in (0, steps // 2, steps - 1):
            history = [{"loss": 1.0}] * (step // expected["steps"])
            for part, base in bases.items():
                found[part].append(learning_rate(stage, base, step, expected["steps"], history))
        assert found == {part: pytest.approx(rates, rel=1e-6) for part, rates in expected["rates"].items()}


COARSE = [0.1, 0.8, 0.9, 0.7, 0.2, 0.4]  # frames of 1 s
FINE = [0.1, 0.2, 0.3, 0.9, 0.9, 0.9, 0.8, 0.1, 0.1, 0.1, 0.6, 0.1]  # frames of 0.5 s
HALF = [0.05, 0.85, 0.95, 0.65, 0.15, 0.5]  # the odds of 0.5 are exact
EARLY = [0.1, 0.3, 0.3, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.1, 0.1]  # frames of 0.5 s
FAINT = [0.02, 0.05, 0.1, 0.02, 0.01, 0.01]
Windows = list[tuple[float, float, float]]


# Windows found in six seconds. Starts and ends weigh nothing, so that each frame is in a moment with its own p: frames
# i to j are one whole moment with the product of their p, times 1 - p of the frames on both sides.


def score_of(**numbers: float) -> MomentScore:
    """A score whose cosines are log odds: scale 1, all else 0."""
    score = MomentScore()
    with torch.no_grad():
        for name, value in ({"scale": 1.0, "offset": 0.0, "enter": 0.0, "leave": 0.0} | numbers).items():
            getattr(score, name).fill_(value)
    return score


def series_of(*recordings: list[float], seconds: float = 6.0) -> list[QueryFrames]:
    """Frames of recordings by their probabilities; recordings of fewer `seconds` are cut in their last frame."""
    grids = [Grid(6.0 / len(one), 3.0 / len(one)) for one in recordings]
    values = [torch.tensor(one, dtype=torch.float64).logit() for one in recordings]
    return [QueryFrames(one, grid, seconds) for one, grid in zip(values, grids, strict=True)]


def found(models: list[list[float]], seconds: float = 6.0, by: Any = "overlap", **decoding: Any) -> Any:
    """Windows of one recording and the probabilities of its frames, by one model or several."""
    settings = Decoding(**{"windows": 3} | decoding)
    members = [(score_of(), series_of(one, seconds=seconds)) for one in models]
    (located,) = find_windows(members, settings, by)
    return [tuple(window) for window in located.windows], located.frames


ONE: list[tuple[list[float], dict[str, Any], Windows]] = [
    # 0.9 x 0.8 x 0.9 x 0.7 x 0.8 = 0.36288, and with a frame more at either side, whose IoU is 3/4, 0.04032 + 0.054432
    (COARSE, {}, [(1, 4, 0.457632), (5, 6, 0.32), (1, 6, 0.104832)]),
    (COARSE, {"max_iou": 0.0}, [(1, 4, 0.457632), (5, 6, 0.32), (4, 5, 0.036)]),
    (COARSE, {"windows": 1}, [(1, 4, 0.457632)]),
    (FINE, {}, [(1.5, 3.5, 0.6905088), (5, 5.5, 0.486), (1, 3, 0.2903364)]),
    # with the 5 s from 0 on, whose IoU is exactly 0.7
    (EARLY, {"windows": 1}, [(1.5, 5, 0.678836)]),
    # starts at 1.5 and ends at 5.5 and 3.5 go to the even second
    (FINE, {"round_to": 1.0}, [(1, 3, 0.2903364), (2, 4, 0.1079568), (5, 6, 0.054)]),
    (COARSE, {"seconds": 5.6, "round_to": 2.0}, [(0, 4, 0.43488), (2, 4, 0.1008), (2, 6, 0.067088)]),
    (COARSE, {"mean_edges": True}, [(0.9119, 4.1189, 0.457632), (5, 6, 0.32), (1.0577, 5.4808, 0.104832)]),
    (FINE, {"mean_edges": True, "round_to": 1.0}, [(1, 3, 0.6905088), (5, 6, 0.486)]),
    # (0.85 + 0.95 + 0.65) / 3 - (0.05 + 0.15 + 0.5) / 3
    (HALF, {"by": "thresholds"}, [(1, 4, 0.583333), (1, 6, 0.57), (2, 3, 0.51)]),
    (HALF, {"by": "thresholds", "max_iou": 0.7}, [(1, 4, 0.583333), (1, 6, 0.57), (1, 3, 0.5625)]),
    (HALF, {"by": "thresholds", "threshold": 0.5}, [(1, 4, 0.583333), (5, 6, -0.03)]),
    (HALF, {"by": "thresholds", "threshold": 0.51}, [(1, 4, 0.583333)]),
    (HALF, {"by": "thresholds", "threshold": 0.66}, [(1, 3, 0.5625)]),
    (FAINT, {"by": "thresholds", "threshold": 0.5}, [(2, 3, 0.078)]),
    (FAINT, {}, [(2, 3, 0.0931), (1, 2, 0.0441), (0, 1, 0.019)]),
    # all odds p / (1 - p) times 14.36774, so that 1 - the product of all 1 - p is 0.9
    (FAINT, {"heard": 0.9}, [(2, 3, 0.270724), (1, 3, 0.158303), (0, 1, 0.129106)]),
    (COARSE, {"heard": 0.9}, [(1, 4, 0.457632), (5, 6, 0.32), (1, 6, 0.104832)]),
]


TWO: list[tuple[list[list[float]], dict[str, Any], Windows]] = [
    # half of 0.6905088: no moment of the coarse frames has an IoU of 0.7 with two seconds from 1.5 on
    ([COARSE, FINE], {}, [(1.5, 3.5, 0.345254), (1, 4.5, 0.321979), (5, 5.5, 0.243)]),
    ([FINE, COARSE], {}, [(1.5, 3.5, 0.345254), (1, 4.5, 0.321979), (5, 5.5, 0.243)]),
    ([COARSE, FINE], {"round_to": 1.0}, [(1, 4, 0.334854), (5, 6, 0.187), (1, 6, 0.053358)]),
    ([COARSE, FINE], {"mean_edges": True}, [(1.451, 3.4527, 0.345254), (1.0205, 4.1139, 0.321979), (5, 5.5, 0.243)]),
    ([FAINT, COARSE], {"heard": 0.9}, [(1, 5, 0.265739), (0, 4, 0.265596), (5, 6, 0.215337)]),
]


@pytest.mark.parametrize(("models", "settings", "expected"), [*(([frames], *rest) for frames, *rest in ONE), *TWO])
def test_windows_of_one_and_of_two_models_stay_as_they_are(models, settings, expected):
    windows, _ = found(models, **settings)
    assert windows == [pytest.approx(window, abs=2e-6) for window in expected]


def test_frames_of_two_models_are_averaged_on_the_shorter_frames():
    _, frames = found([COARSE, FINE])
    assert frames == pytest.approx([0.1, 0.15, 0.55, 0.85, 0.9, 0.9, 0.75, 0.4, 0.15, 0.15, 0.5, 0.25])
    _, raised = found([FAINT], heard=0.9)
    odds = 14.36774 * np.divide(FAINT, np.subtract(1, FAINT))
    assert raised == pytest.approx(odds / (1 + odds), abs=1e-5)
    assert 1 - np.prod(1 - raised) == pytest.approx(0.9, abs=1e-7)


def test_fitted_scale_offset_and_transitions_stay_as_they_are():
    """Recordings that the frames' probabilities only partly explain, so that the likelihood has a finite maximum."""
    recordings = [COARSE, FAINT, [0.6, 0.3, 0.2, 0.8, 0.4, 0.9], [0.2, 0.7, 0.3, 0.1, 0.6, 0.5]]
    windows = [[(1.0, 4.0)], [(2.0, 3.0)], [(3.0, 6.0)], [(0.0, 2.0), (4.0, 5.0)]]
    moments = [Moment(id=str(n), text="a dog", clip="c", windows=each) for n, each in enumerate(windows)]
    score = fit_score(score_of(), series_of(*recordings), moments, "a model")
    numbers = {"scale": 1.2249, "offset": 0.4197, "enter": -0.9499, "leave": 0.9628}
    assert score.trained_numbers() == pytest.approx(numbers, abs=5e-4)
    firsts = [one.windows[0] for one in find_windows([(score, series_of(*recordings))], Decoding())]
    expected = [(1, 4, 0.62965), (2, 3, 0.08963), (0, 1, 0.56393), (4, 5, 0.41057)]
    assert firsts == [pytest.approx(window, abs=5e-4) for window in expected]
