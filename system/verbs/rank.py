"""Verb rank: write scores or windows.

Score any clips for any queries with a trained model, or find the times of queries in recordings.
"""

import argparse
import contextlib
from pathlib import Path

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import require_other
from data_tools.manifest import caption_queries, read_queries
from submission.editions import format_metric, get_moments_edition
from submission.metrics.summary import format_interval
from system.ranking.listing import list_clips
from system.ranking.locate import (
    WAYS,
    Sliding,
    locate,
    read_for_fit,
    read_moment_queries,
    truth_file,
    write_windows,
)
from system.ranking.write import write_ranking
from system.verbs.options import (
    MODEL,
    add_cache_argument,
    add_changes_argument,
    add_checkpoint_arguments,
    parse_positive,
    ranker_of,
)

PIECE, HOP = 10.0, 1.0  # seconds; from published zero-shot results with sliding windows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `rank` to its parser."""
    model = f"{MODEL}; with --windows, several models can be named, and their results are averaged"
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help=model)
    parser.add_argument(
        "--audio", type=Path, required=True, help="the clips to rank: a manifest (.jsonl), or a folder of audio files"
    )
    parser.add_argument("--split", help="for a manifest: use only the clips of this split (default: all)")
    parser.add_argument(
        "--queries", type=Path, help="captions CSV with the queries (default: the captions in the manifest)"
    )
    out = (
        "the file to write: a score matrix (.npy); with --top a ranked CSV (.csv), or pairs of query and clip for a "
        "judge model (.jsonl)"
    )
    parser.add_argument("--out", type=Path, required=True, help=out)
    top = "write only each query's K best clips, which needs less memory"
    parser.add_argument("--top", type=parse_positive, metavar="K", help=top)
    unknown = "accept queries without any word that the model knows; all of them get the same order of clips"
    parser.add_argument("--allow-unknown", action="store_true", help=unknown)
    _add_window_arguments(parser)
    add_cache_argument(parser)
    add_checkpoint_arguments(parser)
    add_changes_argument(parser)


def _add_window_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `rank --windows`, which finds the times of queries in long recordings."""
    windows = parser.add_argument_group("times of queries in long recordings (--windows)")
    what = (
        "find the times of each query in its recording, and write them to --out (.jsonl) for the challenge's scorer of "
        "2026"
    )
    windows.add_argument("--windows", action="store_true", help=what)
    windows.add_argument(
        "--moments",
        type=Path,
        metavar="MOMENTS.jsonl",
        help="file of moments (.jsonl): the queries, each with the recording to search in",
    )
    fit = (
        "fit the numbers that turn a model's scores of frames into windows (scale, offset, weights of moment starts "
        "and ends) to this split of the manifest, whose windows are known; needed for models not trained on moments"
    )
    windows.add_argument("--fit", metavar="SPLIT", help=fit)
    by = (
        "how to find windows; overlap: windows that most probably have an IoU of 0.7 or more with a moment; "
        "thresholds: frames above thresholds (default: thresholds "
        "for PE-A-Frame without --fit, else overlap)"
    )
    windows.add_argument("--by", choices=WAYS, help=by)
    threshold = (
        "for --by thresholds: least probability of the frames in a window (default: 0.3 for PE-A-Frame, else "
        "nine thresholds from 0.1 to 0.9)"
    )
    windows.add_argument("--threshold", type=_parse_probability, metavar="P", help=threshold)
    piece = "for models of whole clips: length of the recording's pieces, in seconds (default: %(default)g)"
    windows.add_argument("--piece", type=_parse_seconds, default=PIECE, metavar="SECONDS", help=piece)
    hop = "for models of whole clips: time from one piece to the next, in seconds (default: %(default)g)"
    windows.add_argument("--hop", type=_parse_seconds, default=HOP, metavar="SECONDS", help=hop)
    unit = (
        "round the edges of windows to multiples of this number of seconds (1 for CASTELLA); 0: do not round (default: "
        "as in the run's rank entry)"
    )
    windows.add_argument("--round-to", type=_parse_seconds_or_zero, metavar="SECONDS", help=unit)
    heard = (
        "assume that a query is heard in its recording with at least this probability, such as 0.999; 0: do not "
        "assume it (default: as in the run's rank entry)"
    )
    windows.add_argument("--heard", type=_parse_probability_or_zero, metavar="P", help=heard)
    mean = "replace the edges of a window by the mean edges of similar windows (default: as in the run's rank entry)"
    windows.add_argument("--mean-edges", action=argparse.BooleanOptionalAction, help=mean)


def _parse_seconds(text: str) -> float:
    """Parse a number of seconds above 0 and below 3600, as a type of argparse."""
    return _parse_below(3600, text, "a number of seconds")


def _parse_seconds_or_zero(text: str) -> float:
    """Parse 0, or a number of seconds above 0 and below 3600, as a type of argparse."""
    return _parse_below(3600, text, "0, or a number of seconds", allows_zero=True)


def _parse_probability(text: str) -> float:
    """Parse a probability above 0 and below 1, as a type of argparse."""
    return _parse_below(1, text, "a probability")


def _parse_probability_or_zero(text: str) -> float:
    """Parse 0, or a probability above 0 and below 1, as a type of argparse."""
    return _parse_below(1, text, "0, or a probability", allows_zero=True)


def _parse_below(limit: float, text: str, title: str, allows_zero: bool = False) -> float:
    """Parse a number above 0 and below `limit`, or 0 if allowed. title: Name of such a number, for the message."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < limit or (allows_zero and float(text) == 0):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not {title} above 0 and below {limit:g}")


def _rank_windows(arguments: argparse.Namespace) -> int:
    """Find the windows of queries, write them, and print their metrics. Returns: The exit status."""
    if arguments.moments is None:
        raise KitError("--windows needs the queries and their recordings; name them with --moments MOMENTS.jsonl")
    if arguments.out.suffix != ".jsonl":
        raise KitError(f"--out {arguments.out}: windows are written as JSON lines; give a name that ends in .jsonl")
    if arguments.queries or arguments.top:
        raise KitError("--windows ranks all queries of --moments; leave out --queries and --top")
    for path in (arguments.out, truth_file(arguments.out)):
        require_other(path, [path for path in (arguments.moments, arguments.audio) if path])
    queries = read_moment_queries(arguments.audio, arguments.moments, arguments.split)
    fit = None
    if arguments.fit is not None:
        fit = read_for_fit(arguments.audio, arguments.moments, arguments.fit, queries)
    if len({model.resolve() for model in arguments.models}) < len(arguments.models):
        raise KitError("a model is named twice among the MODEL arguments; name each model once")
    rankers = [ranker_of(arguments, model, with_windows=fit is None) for model in arguments.models]
    edition = get_moments_edition()
    sliding = Sliding(arguments.piece, arguments.hop)
    located = locate(
        rankers,
        queries,
        fit,
        sliding,
        by=arguments.by,
        round_to=arguments.round_to,
        allow_unknown=arguments.allow_unknown,
        threshold=arguments.threshold,
        heard=arguments.heard,
        mean_edges=arguments.mean_edges,
    )
    summary = write_windows(arguments.out, queries, located, edition)
    if summary is not None:
        for name, value in summary.values.items():
            interval = format_interval(summary.bootstraps[name], name)
            print(f"  {name:9} {format_metric(name, value)}  (95 % {interval})")
    print(
        f"wrote {arguments.out}: {counted(len(queries.moments), 'query', ',')} in "
        f"{counted(len(queries.recordings), 'recording', ',')}; next: lbar submit write {arguments.out} "
        "--out FILE.jsonl"
    )
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `rank`: write the scores of clips, or the windows of queries. Returns: The exit status."""
    if arguments.windows:
        return _rank_windows(arguments)
    if len(arguments.models) > 1:
        raise KitError(
            f"rank accepts only one MODEL without --windows, not {len(arguments.models)}; rank with each model, and "
            "combine the score matrices with lbar submit blend"
        )
    unset = ("moments", "fit", "round_to", "by", "threshold", "heard", "mean_edges")
    usual = {**dict.fromkeys(unset), "piece": PIECE, "hop": HOP}
    if not_windows := [name for name, value in usual.items() if getattr(arguments, name) != value]:
        option = "--" + not_windows[0].replace("_", "-")
        raise KitError(f"{option} only works with --windows; add --windows, or leave {option} out")
    if arguments.top is None and arguments.out.suffix != ".npy":
        hint = "; for ranked lists (.csv) add --top K" if arguments.out.suffix == ".csv" else ""
        raise KitError(f"--out {arguments.out}: the name of a score matrix must end in .npy{hint}")
    if arguments.top is not None and arguments.out.suffix not in (".csv", ".jsonl"):
        raise KitError(
            f"--out {arguments.out}: with --top, the name must end in .csv for ranked lists, or .jsonl for pairs "
            "that a judge can score"
        )
    require_other(arguments.out, [arguments.queries, arguments.audio])
    listed = list_clips(arguments.audio, arguments.split)
    queries = caption_queries(listed.clips) if arguments.queries is None else read_queries(arguments.queries)
    if not queries:
        raise KitError(f"{arguments.audio} has no captions as queries; name a file of queries with --queries")
    ranker = ranker_of(arguments, arguments.models[0])
    ranked = write_ranking(ranker, listed, queries, arguments.out, arguments.top, arguments.allow_unknown)
    size = f"{counted(len(queries), 'query')} x {counted(ranked, 'clip')}"
    if arguments.top is not None:
        size = f"{counted(len(queries), 'query')} x {counted(arguments.top, 'best clip')}, of {counted(ranked, 'clip')}"
    print(f"wrote {arguments.out}: {size}")
    return 0
