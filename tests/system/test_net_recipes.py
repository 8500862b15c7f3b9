"""Recipes with one planted mistake each are refused with the key and the line; all shipped recipes load."""

import functools
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from system.__main__ import main
from system.recipe.load import load_recipe
from system.training.schedule import learning_rate

ROOT = Path(__file__).resolve().parents[2]
KEY = re.compile(r"( *)([a-z_]+):( +)([^#\n]*?)( *(?:#.*)?)")
NUMBER = re.compile(r"\b([a-z_]+): (\d[\d.e+-]*)(?=[,}\s]|$)")
REFERENCE = re.compile(r"\b(data|stage|metric|of|corpus|checkpoint|validation|bank|fit): \[?([\w@.]+)")
# Keys whose values are names of the recipe's own parts, or that may be left out without a mistake elsewhere.
KEYS = (
    *(
        "batch_size",
        "epochs",
        "precision",
        "max_grad_norm",
        "unit",
        "captions_per_clip",
        "losses",
        "optimizer",
        "schedule",
    ),
    *("manifest", "split", "sample_rate", "width", "heads", "ffn_dim", "dropout", "hidden", "dim", "monitor", "seed"),
)


@functools.cache
def recipes() -> list[Path]:
    found = sorted((ROOT / "recipes").rglob("*.yaml"))
    return [
        path
        for path in found
        if not path.name.endswith(".study.yaml") and "recipe" not in yaml.safe_load(path.read_text())
    ]


def places(path: Path) -> list[tuple[int, re.Match[str]]]:
    """Lines of a recipe with a single key that is in KEYS, and a value."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = KEY.fullmatch(line)
        if match and match[2] in KEYS and match[4] and match[4][0] not in "&*>|":
            found.append((number, match))
    return found


def planted(seed: int) -> tuple[Path, int, str, str]:
    """A recipe, the line and key of a mistake, and the text of that line."""
    draw = random.Random(seed)
    path = draw.choice([path for path in recipes() if places(path)])
    number, match = draw.choice(places(path))
    indent, key, blanks, value, rest = match.groups()
    kind = draw.choice(("key", "value", "twice"))
    if kind == "key":
        return path, number, f"{key}s", f"{indent}{key}s:{blanks}{value}{rest}"
    if kind == "value":
        return path, number, key, f"{indent}{key}:{blanks}[[1], x]{rest}"
    return path, number + 1, key, f"{indent}{key}:{blanks}{value}\n{indent}{key}:{blanks}{value}{rest}"


def planted_in_place(seed: int) -> tuple[Path, int, str, str]:
    """The same, of a number below its range or a name that nothing has, also inside of braces."""
    draw = random.Random(seed)
    pattern, wrong = draw.choice(((NUMBER, "-1"), (REFERENCE, "nowhere")))
    path = draw.choice(recipes())
    lines = enumerate(path.read_text().splitlines(), 1)
    found = [(number, line, match) for number, line in lines for match in pattern.finditer(line.split("#")[0])]
    number, line, match = draw.choice(found)
    return path, number, match[1], line[: match.start(2)] + wrong + line[match.end(2) :]


def require_refused(mistake: tuple[Path, int, str, str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, number, key, text = mistake
    lines = path.read_text().splitlines()
    lines[number - 1 - text.count("\n")] = text
    (folder / "mine.yaml").write_text("\n".join(lines) + "\n")
    assert main(["check", str(folder / "mine.yaml")]) == 1
    error = capsys.readouterr().err
    assert f"mine.yaml:{number}" in error, path
    assert key in error, path


@pytest.mark.parametrize("seed", range(24))
def test_planted_mistake_is_refused_with_its_key_and_line(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_refused(planted(seed), tmp_path, capsys)
    require_refused(planted_in_place(seed), tmp_path, capsys)


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
