"""Verb search: best clips for a query.

Print the clips of a folder that a trained model finds for queries.
"""

import argparse
import logging
from pathlib import Path

from data_tools.cli import add_json
from data_tools.errors import KitError
from data_tools.settings import print_report
from system.ranking.base import Hit
from system.ranking.listing import list_clips
from system.serve.search import Search, SearchQuery
from system.verbs.json_output import ClipFound, QueryAnswer, SearchReport
from system.verbs.options import (
    MODEL,
    add_cache_argument,
    add_changes_argument,
    add_checkpoint_arguments,
    parse_positive,
    ranker_of,
)

SHOWN_WINDOWS = 3  # of a hit

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `search` to its parser."""
    parser.add_argument("model", type=Path, help=MODEL)
    words = 'the clips, then queries, such as data/sounds "a dog barks"; with --audio, only queries'
    parser.add_argument("queries", nargs="+", metavar="AUDIO QUERY", help=words)
    audio = "the clips: a folder of audio files, with its subfolders, or a manifest (.jsonl), instead of AUDIO"
    parser.add_argument("--audio", type=Path, metavar="FOLDER", help=audio)
    parser.add_argument(
        "--top", type=parse_positive, default=10, help="number of clips to print per query (default: %(default)s)"
    )
    parser.add_argument("--split", help="for a manifest: use only the clips of this split (default: all)")
    add_json(parser)
    add_cache_argument(parser)
    add_checkpoint_arguments(parser)
    add_changes_argument(parser)


def _best_windows(hit: Hit) -> list[tuple[float, float]] | None:
    """Return the best times of the sound in a found clip, in seconds; None for a model that finds no times."""
    if hit.located is None:
        return None
    return [(round(window.start, 3), round(window.end, 3)) for window in hit.located.windows[:SHOWN_WINDOWS]]


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `search`: print the best clips of each query. Returns: The exit status."""
    audio, *queries = [arguments.audio, *arguments.queries] if arguments.audio else arguments.queries
    if not queries:
        raise KitError("the query is missing; describe a sound after the clips: lbar search MODEL AUDIO QUERY")
    if empty := [number for number, text in enumerate(queries, start=1) if not text.strip()]:
        raise KitError(f"query {empty[0]} is empty; describe a sound, or leave it out")
    listed = list_clips(Path(audio), arguments.split)  # its errors are reported before the model is loaded
    ranker = ranker_of(arguments, arguments.model, with_windows=True)
    search = Search(ranker, ranker.open(listed))
    answers = search.answer([SearchQuery(text, arguments.top) for text in queries])
    found = [
        QueryAnswer(
            query=text,
            unknown=list(unknown),
            clips=None if hits is None else [
                ClipFound(path=search.clips[hit.row].path, score=round(hit.score, 6), windows=_best_windows(hit))
                for hit in hits
            ],
        )
        for text, (hits, unknown) in zip(queries, answers, strict=True)
    ]  # fmt: skip
    if arguments.json:
        print_report(SearchReport(clips=len(search.clips), skipped=dict(search.pool.skipped), queries=found))
    else:
        for answer in found:
            print(answer.query)
            if answer.clips and answer.unknown:
                print(f"      words that the model does not know: {', '.join(answer.unknown)}")
            for rank, clip in enumerate(answer.clips or [], 1):
                times = ", ".join(f"{start:.2f} to {end:.2f} s" for start, end in clip.windows or [])
                print(f"{rank:4}  {clip.score:7.4f}  {clip.path}{times and f'  {times}'}")
    unreadable = [answer.query for answer in found if answer.clips is None]
    for text in unreadable:
        log.error("error: the model knows no word of %r; reword it", text[:60])
    return 1 if unreadable else 0
