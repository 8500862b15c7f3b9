"""The command line of this floor: `python -m submission VERB ...`."""

import argparse
import sys

from data_tools.cli import Verb, run_cli
from submission.editions import EDITIONS, MOMENTS

VERBS = {
    name: Verb(purpose, example, module=f"verbs.{name}", resumes=name == "judge")
    for name, purpose, example in (
        (
            "facts",
            "the rules of an edition, with sources; or all editions, one per line",
            "python -m submission facts --edition 2025",
        ),
        (
            "write",
            "an edition's file from a score matrix or a finished run",
            "python -m submission write SCORES.npy --edition 2025 --out mine.output.csv",
        ),
        (
            "convert",
            "a CSV converted to another edition, or to a score matrix",
            "python -m submission convert mine.csv --out scores.npy",
        ),
        (
            "check",
            "every problem of a file or a package",
            "python -m submission check mine.output.csv --edition 2025 --truth clotho_captions_evaluation.csv",
        ),
        (
            "score",
            "figures of a CSV, a score matrix, or a finished run",
            "python -m submission score mine.output.csv --truth clotho_captions_evaluation.csv\n"
            "  python -m submission score mine.output.jsonl --truth castella_test_release.jsonl --edition 2026\n"
            "  python -m submission score runs/A:by_m1",
        ),
        (
            "compare",
            "a paired test between a system and others",
            "python -m submission compare blend.npy runs/A runs/B runs/C",
        ),
        (
            "blend",
            "one score matrix from several",
            "python -m submission blend a.npy b.npy --validation val_a.npy val_b.npy --how standardised "
            "--out blend.npy",
        ),
        (
            "judge",
            "scores of a local command for each query's best clips",
            "python -m submission judge top.jsonl --command 'python judge.py' --out judged.jsonl",
        ),
        (
            "rerank",
            "a score matrix, re-ranked by a judge's scores",
            "python -m submission rerank scores.npy --judged judged.jsonl --validation val.npy val_judged.jsonl "
            "--out reranked.npy",
        ),
        (
            "report",
            "one page of a finished run: figures, failures, and clips to listen to",
            "python -m submission report runs/A:by_m1 --beside runs/B --out a.html",
        ),
        (
            "pack",
            "the archive for the challenge, from finished runs",
            "python -m submission pack runs/A runs/B:by_m1 --about about.yaml --edition 2024 --report report.pdf "
            "--out package.zip",
        ),
    )
}


def main(argv: list[str] | None = None) -> int:
    """Run one command-line verb and return its exit status; see run_cli."""
    description = "Files and figures of the language-based audio retrieval challenge."
    return run_cli("submission", description, VERBS, argv, add_edition)


def add_edition(parser: argparse.ArgumentParser) -> None:
    """Add --edition, the option that every verb of this package takes."""
    years = ", ".join([*EDITIONS, *MOMENTS])
    what = f"one of {years} (default: that of the run, scores or CSV, if known; facts: all; convert to a CSV needs one)"
    parser.add_argument("--edition", metavar="YEAR", help=what)


if __name__ == "__main__":
    sys.exit(main())
