"""Verb embeddings: write embeddings to a file.

Write a trained model's embeddings of clips and captions to a file for other programs.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.cli import counted
from data_tools.errors import KitError
from data_tools.files import replacing
from data_tools.manifest import caption_queries
from system.ranking.listing import list_clips
from system.verbs.options import MODEL, add_cache_argument, add_changes_argument, add_checkpoint_arguments, ranker_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `embeddings` to its parser."""
    parser.add_argument("model", type=Path, help=MODEL)
    parser.add_argument(
        "audio", type=Path, help="the clips: a folder of audio files, with its subfolders, or a manifest (.jsonl)"
    )
    parser.add_argument("--out", type=Path, required=True, help="the file to write (.npz)")
    raw = "write unscaled vectors (default: unit length, so that dot products are the scores)"
    parser.add_argument("--raw", action="store_true", help=raw)
    add_cache_argument(parser)
    add_checkpoint_arguments(parser)
    add_changes_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `embeddings`: write embeddings of clips and captions to a file. Returns: The exit status."""
    if arguments.out.suffix != ".npz":
        raise KitError(f"--out {arguments.out}: must end in .npz")
    listed = list_clips(arguments.audio, None)
    ranker = ranker_of(arguments, arguments.model)
    pool = ranker.open(listed)
    clips, captions, normalize = pool.clips, caption_queries(pool.clips), not arguments.raw
    sounds = ranker.clip_vectors(pool, normalize)
    texts = ranker.text_vectors([caption.text for caption in captions], normalize) if captions else sounds[:0]
    columns: dict[str, Any] = {
        "kind": ["clip"] * len(clips) + ["caption"] * len(captions),
        "id": [clip.id for clip in clips] + [caption.id for caption in captions],
        "text": [clip.path for clip in clips] + [caption.text for caption in captions],
        "embedding": np.concatenate([sounds, texts]),
    }
    with replacing(arguments.out) as part, part.open("wb") as file:
        np.savez(file, **columns)
    print(
        f"wrote {arguments.out}: {counted(len(clips), 'clip')}, {counted(len(captions), 'caption')}, "
        f"{counted(sounds.shape[1], 'value')} per embedding"
    )
    return 0
