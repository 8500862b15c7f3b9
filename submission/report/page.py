"""One HTML page of a finished run; its text is page.html."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from data_tools.errors import KitError
from data_tools.files import write_text
from submission.metrics.summary import Summary, compare
from submission.report import clips, moments
from submission.report.audio import AudioStore
from submission.report.figures import draw_systems
from submission.runs.entry import Entry
from submission.runs.record import MomentsResult, read_metrics


def write_report(out: Path, run: Entry, others: Sequence[Entry]) -> None:
    """Write the page of an entry."""
    room = moments if run.of_moments else clips
    store, beside = AudioStore(room.LONGEST), {f"{other.folder}:{other.name}": other for other in others}
    systems = {"this run": run.summary, **{name: other.summary for name, other in beside.items()}}
    levels = reference_levels(run)
    content = {
        "run": run,
        "title": f"{run.folder.resolve().name}:{run.name}",
        "systems": systems,
        "levels": levels,
        "result_figure": draw_systems(systems, levels),
        "differences": [[name, *difference(run.summary, other.summary)] for name, other in beside.items()],
        "settings": {name: list(differing_settings(run.recipe, other.recipe)) for name, other in beside.items()},
        "curves": {path.stem: path.read_bytes() for path in sorted((run.folder / "figures").glob("*.svg"))},
        "epochs": read_metrics(run.folder / "metrics.jsonl", "make the run again"),
        "recipe": json.dumps(run.recipe, indent=1),
        **room.content(run, store),
    }
    write_text(out, render(content, store.uris))


def reference_levels(run: Entry) -> dict[str, float]:
    """Return values to compare with, such as chance."""
    primary, ranked, levels = run.summary.primary, run.ranked, {"chance": run.summary.chance}
    if isinstance(ranked, MomentsResult):
        levels |= {"random windows": (ranked.random or {}).get(primary), "ceiling": (ranked.ceiling or {}).get(primary)}
    else:
        ceiling = ranked.ceiling if primary == "mAP@10" else None  # as is the ceiling of composed scenes
        levels |= {"untrained": ranked.untrained, "ceiling": ceiling}
    return {name: value for name, value in levels.items() if value is not None}


def difference(this: Summary, other: Summary) -> list[str]:
    """Return this run minus another, with the paired test; or why there is none."""
    try:
        return this.describe(compare(this, [other]))
    except KitError as error:
        return [f"not comparable: {error}", "–", "–"]


def differing_settings(this: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the dotted key and both values of each setting that differs."""
    own, theirs = dict(dotted_values(this)), dict(dotted_values(other))
    for key in own | theirs:
        both = [json.dumps(one[key]) if key in one else "–" for one in (own, theirs)]
        if both[0] != both[1]:
            yield [key, *both]


def dotted_values(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each setting.

    >>> dict(dotted_values({"a": {"b": [1, {"c": 2}]}, "d": []}))
    {'a.b.0': 1, 'a.b.1.c': 2, 'd': []}
    """
    parts = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    for key, part in parts.items():
        yield from dotted_values(part, f"{at}.{key}" if at else str(key))
    if not parts:
        yield at, value


def render(content: Mapping[str, Any], audio: Sequence[str]) -> str:
    """Return the page. audio: Data URIs of the clips."""
    from jinja2 import Environment, StrictUndefined

    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"base64": lambda data: base64.b64encode(data).decode(), "clock": clock}
    return environment.from_string(text).render(content, audio=audio)


def clock(seconds: float) -> str:
    """Return a time such as `1:05.0`."""
    tenths = round(10 * seconds)
    return f"{tenths // 600}:{tenths % 600 / 10:04.1f}"
