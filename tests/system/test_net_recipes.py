"""The shipped recipes: frames, parameters, updates, losses and learning rates of published systems; mistakes."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from system.__main__ import main
from system.recipe.load import load_recipe
from system.training.schedule import learning_rate

ROOT = Path(__file__).resolve().parents[2]
KEYS = (
    "batch_size|epochs|precision|max_grad_norm|unit|captions_per_clip|losses|optimizer|schedule|manifest|split|monitor"
)
KEYS += "|sample_rate|width|heads|ffn_dim|dropout|hidden|dim|seed"
KEY = re.compile(rf"( *)({KEYS}):( +)([^#\n&*>|][^#\n]*?)( *(?:#.*)?)")  # a line of one key
NUMBER = re.compile(r"\b([a-z_]+): (\d[\d.e+-]*)(?=[,}\s]|$)")
REFERENCE = re.compile(r"\b(data|stage|metric|of|corpus|checkpoint|validation|bank|fit): \[?([\w@.]+)")


def planted(lines: list[str], kind: str, draw: random.Random) -> tuple[int, str, str]:
    """The place of a mistake in a recipe, its key, and the lines that stand there instead."""
    pattern = {"number": NUMBER, "reference": REFERENCE}.get(kind, KEY)
    whole = pattern is KEY
    found = [
        (n, one) for n, line in enumerate(lines) for one in pattern.finditer(line if whole else line.split("#")[0])
    ]
    number, match = draw.choice([(n, one) for n, one in found if not whole or one[0] == lines[n]] or [(0, None)])
    if match is None:
        return 0, "", lines[0]
    if not whole:
        wrong, line = "-1" if kind == "number" else "nowhere", lines[number]
        return number, match[1], line[: match.start(2)] + wrong + line[match.end(2) :]
    indent, key, blanks, value, rest = match.groups()
    changed = {"key": f"{indent}{key}s:{blanks}{value}{rest}", "value": f"{indent}{key}:{blanks}[[1], x]{rest}"}
    return number, key, changed.get(kind, f"{match[0]}\n{match[0]}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["key", "value", "twice", "number", "reference"])
def test_mistake_in_a_shipped_recipe_is_refused_with_its_key_and_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = [path for path in sorted((ROOT / "recipes").rglob("*.yaml")) if "\nrecipe:" not in path.read_text()]
    draw, seen, mine = random.Random(kind), 0, tmp_path / "mine.yaml"
    while seen < 60:
        path = draw.choice(recipes)
        lines = path.read_text().splitlines()
        number, key, text = planted(lines, kind, draw)
        if not key:
            continue
        lines[number] = text
        mine.write_text("\n".join(lines) + "\n")
        assert main(["check", str(mine)]) == 1
        error = capsys.readouterr().err
        assert f"mine.yaml:{number + 1 + (kind == 'twice')}" in error, path
        assert key in error, path
        seen += 1


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
def test_published_system_has_its_frames_parameters_and_updates(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
def test_published_system_has_its_losses_and_learning_rates(name: str) -> None:
    """The validation loss never improves, so that rates of plateaus fall."""
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
