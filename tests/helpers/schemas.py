"""The published schemas of the --json output of verbs: `PYTHONPATH=. python tests/helpers/schemas.py`
writes them."""

import json
from pathlib import Path
from typing import Any

from data_tools.cli import PROGRAMS
from data_tools.documents.strict import Report
from system.verbs.json_output import (
    ExpertsReport,
    PlanReport,
    RecipesReport,
    RelevanceReport,
    RunsReport,
    SearchReport,
)

ROOT = Path(__file__).parents[2]

REPORTS: dict[tuple[str, str], type[Report]] = {
    ("system", "check"): PlanReport,
    ("system", "experts"): ExpertsReport,
    ("system", "recipes"): RecipesReport,
    ("system", "relevance"): RelevanceReport,
    ("system", "runs"): RunsReport,
    ("system", "search"): SearchReport,
}


def schema(floor: str, verb: str) -> dict[str, Any]:
    title = f"{PROGRAMS[floor]} {verb} --json"
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, **REPORTS[floor, verb].model_json_schema(), "title": title}


def published(floor: str, verb: str) -> Path:
    return ROOT / floor / "schemas" / f"{verb}.json"


if __name__ == "__main__":
    for key in REPORTS:
        published(*key).parent.mkdir(exist_ok=True)
        published(*key).write_text(json.dumps(schema(*key), indent=1) + "\n")
