"""One HTML page of a finished run."""

import base64
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from data_tools.files import writing
from submission.errors import SubmissionError
from submission.formats.moments import windows_by_query
from submission.metrics.summary import Summary, compare, summarise_matrix, summarise_moments
from submission.report import clips, moments
from submission.report.audio import AudioStore
from submission.report.figures import draw_systems
from submission.report.parts import NONE, Drawing, Section, Table
from submission.runs.entry import Entry

THIS_RUN = "this run"


def write_report(out: Path, run: Entry, others: Sequence[Entry]) -> None:
    """Write the page of an entry, and its figures."""
    out.parent.mkdir(parents=True, exist_ok=True)
    is_own = out.parent.resolve() == run.folder.resolve()
    folder = run.folder / "figures" if is_own else out.with_name(f"{out.stem}_figures")
    names = {f"{other.folder}:{other.name}": other for other in others}
    systems = {THIS_RUN: summarise(run), **{name: summarise(other) for name, other in names.items()}}
    summary, store = systems[THIS_RUN], AudioStore(moments.LONGEST if run.of_moments else clips.LONGEST)
    if run.of_moments:
        own = [moments.windows_section(summary, run.edition), moments.timelines_section(run, summary, store)]
    else:
        own = [
            clips.ranks_section(summary, folder / f"{run.name}.ranks.svg"),
            clips.lengths_section(summary, folder / f"{run.name}.words.svg"),
            clips.listening_section(run, summary, store),
        ]
    sections = [
        result_section(run, systems, folder / f"{run.name}.result.svg"),
        *([settings_section(run, names)] if names else []),
        *own,
        run_section(run),
        *curves_sections(run),
        caveats_section(run),
    ]
    with writing(out) as file:
        file.write(render(f"{run.folder.resolve().name}:{run.name}", sections, store.uris).encode())


def summarise(run: Entry) -> Summary:
    """Return the metrics of an entry."""
    if run.of_moments:
        return summarise_moments(windows_by_query(run.answers), run.truth, run.edition)
    return summarise_matrix(run.matrix, run.edition)


def reference_levels(run: Entry, summary: Summary) -> dict[str, float]:
    """Return values to compare with, such as chance."""
    metric, ranked = summary.primary, run.ranked.model_dump()
    levels = {"chance": summary.chance}
    for name, key in (("untrained", "untrained"), ("random windows", "random"), ("ceiling", "ceiling")):
        value = ranked.get(key)
        levels[name] = value.get(metric) if isinstance(value, dict) else value
    if metric == "mAP@16":
        levels.pop("ceiling")  # that of composed scenes is mAP@10
    return {name: value for name, value in levels.items() if value is not None}


def result_section(run: Entry, systems: Mapping[str, Summary], path: Path) -> Section:
    """Return all metrics of this run and others."""
    this = systems[THIS_RUN]
    levels = reference_levels(run, this)
    draw_systems(path, systems, levels)
    rows = [
        [name, *map(one.format, one.values.values()), one.format_interval(one.bootstrap)]
        for name, one in systems.items()
    ]
    rows += [
        [name, *(this.format(value) if metric == this.primary else NONE for metric in this.values), NONE]
        for name, value in levels.items()
    ]
    tables = [Table("All metrics", ("system", *this.values, f"95 % of {this.primary}"), rows)]
    if len(systems) > 1:
        tables.append(differences_table(systems))
    value = this.format(this.values[this.primary])
    text = (
        f"95 % {this.format_interval(this.interval)} by jackknife over queries, {this.format_interval(this.bootstrap)} "
        f"by bootstrap over groups; {len(this.queries.texts):,} queries, pool of {this.queries.n_pool:,}; edition "
        f"{run.edition.name}."
    )
    drawing = Drawing(path, f"{this.primary} with its 95 % intervals", f"{this.primary} {value}")
    return Section(
        "result", "Result", f"{this.primary} {value}", [text, *this.notes], drawings=[drawing], tables=tables
    )


def differences_table(systems: Mapping[str, Summary]) -> Table:
    """Return this run minus each other one, with paired tests."""
    this, rows = systems[THIS_RUN], []
    for name, other in systems.items():
        if name == THIS_RUN:
            continue
        try:
            found = compare(this, [other])
        except SubmissionError as error:
            rows.append([name, f"not comparable: {error}", NONE, NONE])
            continue
        shown = this.format(found.mean, "+"), this.format_interval(found.interval, "+"), f"{found.p:.4f}"
        rows.append([name, *shown])
    caption = f"This run minus another: {this.primary}, paired randomisation test over groups of queries"
    return Table(caption, ("other", "difference", "95 %", "p"), rows)


def settings_section(run: Entry, others: Mapping[str, Entry]) -> Section:
    """Return the settings that differ from other runs."""
    this, tables = dict(dotted_values(run.recipe)), []
    for name, other in others.items():
        that = dict(dotted_values(other.recipe))
        keys = [key for key in {**this, **that} if this.get(key, NONE) != that.get(key, NONE)]
        rows = [[key, *(json.dumps(one[key]) if key in one else NONE for one in (this, that))] for key in keys]
        tables.append(Table(f"This run and {name}", ("setting", THIS_RUN, name), rows))
    return Section("settings", "Settings that differ", tables=tables)


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


def run_section(run: Entry) -> Section:
    """Return the facts of the run."""
    result, known = run.result, run.provenance
    rows = [
        ("recipe", f"{result.recipe}, seed {result.seed}"),
        ("changes", ", ".join(known.changes) if known else ""),
        ("command", shlex.join(known.command) if known else ""),
        ("commits", ", ".join(result.commits)),
        ("hardware", result.hardware),
        ("training", f"{result.training_seconds / 3600:.2f} hours"),
        ("checkpoint", run.ranked.checkpoint),
        ("trained parameters", f"{sum(result.parameters.trained.values()):,} ({result.parameters.trained})"),
        ("frozen parameters", f"{sum(result.parameters.frozen.values()):,} ({result.parameters.frozen})"),
    ]
    data = [
        [
            name,
            set_,
            ", ".join(source.trains),
            f"{one.clips:,}",
            f"{one.captions:,}",
            f"{one.hours:.2f}",
            str(one.licences),
        ]
        for name, source in result.data.items()
        for set_, one in source.sets.items()
    ]
    header = ("source", "set", "trains", "clips", "captions", "hours", "licences (clips)")
    tables = [Table("Facts", ("", ""), [row for row in rows if row[1]]), Table("Data", header, data)]
    return Section("run", "Run", tables=tables, folded={"The resolved recipe": json.dumps(run.recipe, indent=1)})


def curves_sections(run: Entry) -> list[Section]:
    """Return the learning curves of the run, if any."""
    paths = [path for path in sorted((run.folder / "figures").glob("*.svg")) if not path.match("*.*.svg")]
    drawings = [Drawing(path, path.stem, f"{path.stem} by epoch") for path in paths]
    return [Section("learning", "Learning curves", drawings=drawings)] if drawings else []


def caveats_section(run: Entry) -> Section:
    """Return reasons for caution."""
    notes = [f"The results are of one run with one seed ({run.result.seed}); intervals are over queries, not seeds."]
    notes.append(f"{run.ranked.also_trained_on:,} ranked clips are also training data.")
    notes += [] if run.of_moments else [clips.ties_note(run)]
    notes += [
        f"Stage {name} monitored a test split, so its results are too optimistic."
        for name, stage in run.recipe["stages"].items()
        if stage["monitor"].get("test_split")
    ]
    notes += [f"{line.stage}, epoch {line.epoch}: {text}" for line in run.epochs for text in line.collapsed]
    broken = run.result.broken
    notes += [f"{len(broken):,} broken clips are left out."] if broken else []
    folded = {"Clips left out": "\n".join(f"{clip}: {why}" for clip, why in broken.items())} if broken else {}
    return Section("caveats", "Caveats", paragraphs=notes, folded=folded)


def render(title: str, sections: Sequence[Section], audio: Sequence[str]) -> str:
    """Return the page. audio: Data URIs of the clips."""
    from jinja2 import Environment, StrictUndefined

    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["data_uri"] = _data_uri
    return environment.from_string(text).render(title=title, sections=sections, audio=audio)


def _data_uri(path: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"
