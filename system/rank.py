"""Ranking any clips for any queries with a trained model: the score matrix as a file of its own."""

import argparse
from pathlib import Path

from data_tools.datasets.blind import read_blind
from data_tools.manifest import Clip, Query, caption_queries, read_manifest, read_queries
from submission.formats.score_matrix import write_scores
from system.device import device_of
from system.errors import KitError
from system.frames import build_features
from system.models import Trained, open_trained
from system.options import SET_HELP
from system.retrieve import require_readable, score_matrix


def read_pool(path: Path) -> list[Clip]:
    """Clips of a manifest (.jsonl), or every audio file of a folder."""
    if path.is_dir():
        return read_blind(path, path.resolve().name)[0]
    return read_manifest(path)


def rank(trained: Trained, clips: list[Clip], queries: list[Query], out: Path, allow_unknown: bool = False) -> int:
    """Write the score matrix of queries against the clips that are whole; returns how many those are. KitError when a
    query asks for a clip that is absent or broken."""
    features = build_features(clips, dict(trained.recipe.model.audio.experts), Path(trained.recipe.banks))
    asked = {clip_id for query in queries for clip_id in query.relevant or []}
    absent = sorted(asked - features.keys.keys())
    if absent:
        reason = features.broken.get(absent[0], "it is not among the clips")
        raise KitError(
            f"{len(absent)} clips that queries ask for cannot be ranked, first {absent[0]} ({reason}); "
            "mend them, or drop these queries"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    if not allow_unknown:
        require_readable(trained.model, queries)
    write_scores(out, score_matrix(trained.model, clips, queries, features, device_of(), trained.facts))
    return len(features.keys)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a run's folder, or an exported model")
    parser.add_argument("--audio", type=Path, required=True, help="a manifest (.jsonl), or a folder of audio files")
    parser.add_argument("--split", help="of a manifest: only this split's clips (default: all)")
    parser.add_argument("--queries", type=Path, help="queries (.jsonl or .csv; default: the manifest's own captions)")
    parser.add_argument("--out", type=Path, required=True, help="the score matrix to write (.npy)")
    parser.add_argument(
        "--allow-unknown",
        action="store_true",
        help="rank queries of which the model knows no word, too: in one fixed order",
    )
    parser.add_argument("--stage", help="of a run: stage of the checkpoint (default: as the recipe ranks)")
    parser.add_argument(
        "--checkpoint", help="of a run: last, or the metric it is best by (default: as the recipe ranks)"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)


def run(arguments: argparse.Namespace) -> int:
    if arguments.out.suffix != ".npy":
        raise KitError(f"--out {arguments.out}: a score matrix ends in .npy")
    pool = [clip for clip in read_pool(arguments.audio) if arguments.split in (None, clip.split)]
    queries = caption_queries(pool) if arguments.queries is None else read_queries(arguments.queries)
    if not pool or not queries:
        raise KitError(f"nothing to rank: {len(pool)} clips, {len(queries)} queries; see --split and --queries")
    trained = open_trained(arguments.model, arguments.stage, arguments.checkpoint, arguments.set)
    ranked = rank(trained, pool, queries, arguments.out, arguments.allow_unknown)
    print(f"wrote {arguments.out}: {len(queries)} queries x {ranked} clips")
    return 0
