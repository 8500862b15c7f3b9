"""Render the page.

Assemble the sections of a run and render them into one HTML file, which needs no other files.
"""

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from data_tools.files import writing
from submission.editions import Edition
from submission.metrics.scoring import summarise_matrix
from submission.report import moments_sections, overview, results
from submission.report.elements import Drawing, Section, figure4
from submission.report.listening import AudioStore, listening_section
from submission.report.settings import differing_settings_section
from submission.report.statistics import score_gaps
from submission.runs.clips import read_clips
from submission.runs.finished import Finished, FinishedMoments, FinishedRun


def write_report(out: Path, run: FinishedRun, others: Sequence[FinishedRun], edition: Edition) -> list[Drawing]:
    """Write the report page of a run that ranks clips, and its figures (diagrams); return the figures on the page.

    Args:
        out: Path of the page.
        others: Runs to compare with.
        edition: Edition whose metrics are used for all runs.

    Figures are written as ENTRY.NAME.svg into the folder that figures_folder returns.
    Raises SubmissionError for a run whose files are damaged or whose relevant clips are not known; OSError when writing
    fails.
    """
    summary, folder = summarise_matrix(run.matrix, edition), figures_folder(out, run.folder)
    summaries = [summarise_matrix(other.matrix, edition) for other in others]
    names = _distinct_names(others)
    others_figures = dict(zip(names, summaries, strict=True))
    clips = read_clips(run.file(f"scores/{run.entry}.clips.csv"), run.matrix.clip_ids)
    gaps, store = score_gaps(run.matrix), AudioStore()
    sections = [
        results.result_section(run, summary, others_figures, edition, folder / f"{run.entry}.result.svg"),
        differing_settings_section(run, dict(zip(names, others, strict=True))),
        overview.run_section(run),
        overview.curves_section(run),
        results.ranks_section(summary, folder / f"{run.entry}.ranks.svg"),
        results.scores_section(run, gaps, folder),
        results.experts_section(run, summary, clips, folder),
        results.lengths_section(run, summary, clips, folder),
        listening_section(run.matrix, summary, gaps, clips, store),
        overview.caveats_section(run, gaps),
    ]
    return _write_page(out, run, sections, store)


def write_moments_report(out: Path, run: FinishedMoments, others: Sequence[FinishedMoments]) -> list[Drawing]:
    """Write the report page of an entry that finds moments, and its figures (diagrams); return the figures on the page.

    out: Path of the page. others: Entries to compare with; they must have the same queries. Raises SubmissionError for
    a blind list.
    """
    names, store = _distinct_names(others), AudioStore(moments_sections.LONGEST)
    this, summaries = (
        moments_sections.summarise_entry(run),
        [moments_sections.summarise_entry(other) for other in others],
    )
    path = figures_folder(out, run.folder) / f"{run.entry}.result.svg"
    sections = [
        moments_sections.result_section(run, this, dict(zip(names, summaries, strict=True)), path),
        moments_sections.lengths_section(run, this),
        moments_sections.timelines_section(run, this, store),
        differing_settings_section(run, dict(zip(names, others, strict=True))),
        overview.run_section(run),
        overview.curves_section(run),
        overview.caveats_section(run, None),
    ]
    return _write_page(out, run, sections, store)


def figures_folder(out: Path, run: Path) -> Path:
    """Return the folder for the figures of the page `out`: `run`/figures if the page is in the run's folder `run`.

    Otherwise it is PAGE_figures next to the page, because the run may be read-only.
    """
    if out.absolute().parent.resolve() == run.resolve():
        return run / "figures"
    return out.with_name(f"{out.stem}_figures")


def _write_page(out: Path, run: Finished, sections: Sequence[Section | None], store: AudioStore) -> list[Drawing]:
    """Write the page with all sections that are not None; return the drawings in these sections."""
    shown = [section for section in sections if section is not None]
    html = render(f"{run.recipe.name} · {run.entry}", shown, store.uris)
    with writing(out) as file:
        file.write(html.encode())
    return [drawing for section in shown for drawing in section.drawings]


def _distinct_names(runs: Sequence[Finished]) -> list[str]:
    """Return a distinct name FOLDER:ENTRY for each run; equal names get their parent folders."""
    folders = [run.folder.resolve() for run in runs]
    names = [f"{folder.name}:{run.entry}" for folder, run in zip(folders, runs, strict=True)]
    common = os.path.commonpath(folders) if runs else ""
    return [
        name if names.count(name) == 1 else f"{folder.relative_to(common).as_posix()}:{run.entry}"
        for name, folder, run in zip(names, folders, runs, strict=True)
    ]


def render(title: str, sections: Sequence[Section], audio: Sequence[str]) -> str:
    """Return the report page as the text of one HTML file, which needs no other files. audio: Data URIs of the clips.

    All text is escaped. The content security policy of the page allows only embedded data and its own script.
    """
    from jinja2 import Environment, StrictUndefined

    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"data_uri": _data_uri, "figure4": figure4}
    return environment.from_string(text).render(
        title=title,
        sections=sections,
        audio=audio,
        script_hash=_element_hash(text, "script"),
        style_hash=_element_hash(text, "style"),
    )


def _data_uri(path: Path) -> str:
    """Return the content of an SVG file as a data URI, which can be embedded in an HTML page."""
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _element_hash(text: str, tag: str) -> str:
    """Return the hash of the content of a page's only <tag> element, for its content security policy."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
