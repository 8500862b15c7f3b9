"""Verb relevance: CIDEr-D of a corpus.

The verb prints the distribution of CIDEr-D over the caption pairs of a corpus. Percentiles of this distribution are the
thresholds of `relax`, which lowers the ranking loss's margin for similar captions.
"""

import argparse
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from data_tools.cli import add_json, counted
from data_tools.errors import DataError, KitError
from data_tools.manifest import SPLITS, check_caption, of_split, read_manifest
from data_tools.settings import print_report
from data_tools.tables import caption_columns, read_table
from system.losses.cider import Corpus, Distribution, MarginFactor
from system.verbs.json_output import Percentile, RelevanceReport

log = logging.getLogger(__name__)

PERCENTS = [80.0, 90.0, 99.0]
FACTORS = [1.0, 0.7, 0.4]  # "Take it easy" (2022), section 4


def read_corpus(path: Path, split: str | None) -> list[list[str]]:
    """Read the captions of every clip of a manifest, or of a captions CSV.

    A CSV has the columns of Clotho or AudioCaps. Rows of AudioCaps with the same youtube_id and start_time are captions
    of one clip. split: Split of a manifest; None for all splits.
    Raises DataError for unreadable files, and if a split is given for a CSV.
    """
    if path.suffix != ".csv":
        return [clip.captions for clip in of_split(read_manifest(path), split, path)]
    if split:
        raise DataError(f"{path}: a CSV of captions has no splits; leave out --split")
    rows = read_table(path, columns=[])
    of_audiocaps = {"audiocap_id", "youtube_id", "start_time", "caption"} <= rows[0][1].keys()
    columns = ["caption"] if of_audiocaps else caption_columns(path, rows[0][1])
    clips: dict[object, list[str]] = {}
    for line, row in rows:
        for column in columns:
            check_caption(row[column], f"{path}, line {line}, {column}")
        clip = (row["youtube_id"], row["start_time"]) if of_audiocaps else line
        clips.setdefault(clip, []).extend(row[column] for column in columns)
    return list(clips.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `relevance` to its parser."""
    add = parser.add_argument
    files, factors = "manifest .jsonl, or captions .csv of Clotho or AudioCaps", "(default: 1 0.7 0.4)"
    add("files", nargs="+", type=Path, metavar="FILE", help=files)
    add("--split", choices=SPLITS, help="for manifests: use only the captions of this split (default: all)")
    for name, choices, what in (
        (
            "--documents",
            ("caption", "clip"),
            "unit of the document frequencies: a caption, or a clip with all its captions (default: caption)",
        ),
        ("--tokenizer", ("regex", "ptb"), "how to split captions into words; ptb needs Java (default: regex)"),
    ):
        add(name, choices=choices, default=choices[0], help=what)
    add(
        "--percentiles",
        nargs="+",
        type=float,
        default=PERCENTS,
        metavar="Q",
        help="percentiles of CIDEr-D to print, in per cent (default: 80 90 99)",
    )
    add(
        "--factors",
        nargs="+",
        type=float,
        metavar="R",
        help=f"for --figure: factor on the margin at each percentile {factors}",
    )
    parser.add_argument(
        "--figure",
        type=Path,
        help="draw a histogram of CIDEr-D, with the factor on margins, to this file (.png or .svg)",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `relevance`: print the distribution of CIDEr-D in a corpus. Returns: The exit status."""
    percents: list[float] = arguments.percentiles
    factors: list[float] = arguments.factors or FACTORS
    _require_usable(percents, factors, arguments.figure)
    clips = [captions for path in arguments.files for captions in read_corpus(path, arguments.split) if captions]
    began = time.perf_counter()
    corpus = Corpus(clips, arguments.documents, arguments.tokenizer)
    distribution = corpus.distribution(percents)
    if arguments.json:
        print_report(_report(clips, distribution, percents, arguments))
    else:
        print(
            _format(clips, distribution, percents, arguments), f"seconds    {time.perf_counter() - began:.1f}", sep="\n"
        )
    if arguments.figure:
        from system.runs.plots import draw_relevance

        files = ", ".join(path.stem for path in arguments.files)
        title = f"{files}: {distribution.pairs:,} pairs, {_format_zero_share(distribution)} with CIDEr-D 0"
        draw_relevance(distribution, percents, MarginFactor(distribution.percentiles, factors), title, arguments.figure)
        log.info("wrote the figure %s", arguments.figure)
    return 0


def _require_usable(percents: Sequence[float], factors: Sequence[float], figure: Path | None) -> None:
    """Raise KitError for percentiles, factors or a figure file that cannot be used."""
    if bad := [q for q in percents if not 0 <= q <= 100]:
        raise KitError(f"--percentiles {bad[0]:g}: must be from 0 to 100")
    if bad := [r for r in factors if not 0 <= r <= 1]:
        raise KitError(f"--factors {bad[0]:g}: must be from 0 to 1")
    if figure is None:
        return
    if figure.suffix not in (".png", ".svg"):
        raise KitError(f"--figure {figure}: must end in .png or .svg")
    if len(percents) != len(factors) or list(percents) != sorted(set(percents)):
        raise KitError(
            f"--figure: {len(percents)} --percentiles and {len(factors)} --factors; give equally many, and the "
            "percentiles in increasing order"
        )


def _report(
    clips: Sequence[Sequence[str]], distribution: Distribution, percents: Sequence[float], arguments: argparse.Namespace
) -> RelevanceReport:
    """Return the distribution of CIDEr-D for the output with --json."""
    return RelevanceReport(
        clips=len(clips),
        captions=sum(map(len, clips)),
        documents=arguments.documents,
        tokenizer=arguments.tokenizer,
        pairs=distribution.pairs,
        zeros=distribution.zeros,
        mean=distribution.mean,
        percentiles=[Percentile(percent=q, score=c) for q, c in zip(percents, distribution.percentiles, strict=True)],
    )


def _format_zero_share(found: Distribution) -> str:
    """Format the share of pairs whose CIDEr-D is 0, in per cent."""
    return f"{100 * found.zeros / found.pairs:.1f} %"


def _format(
    clips: Sequence[Sequence[str]], distribution: Distribution, percents: Sequence[float], arguments: argparse.Namespace
) -> str:
    """Format the distribution of CIDEr-D as text."""
    scores = "  ".join(f"c{q:g} {c:.5f}" for q, c in zip(percents, distribution.percentiles, strict=True))
    return (
        f"corpus     {counted(len(clips), 'clip', ',')}, {counted(sum(map(len, clips)), 'caption', ',')}; "
        f"documents: {arguments.documents}s, tokenizer: {arguments.tokenizer}\n"
        f"pairs      {distribution.pairs:,}, {_format_zero_share(distribution)} with CIDEr-D 0\n"
        f"CIDEr-D    mean {distribution.mean:.5f}  {scores}"
    )
