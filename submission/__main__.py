"""Command line of this folder: `lbar submit VERB ...`."""

import argparse
import sys

from data_tools.cli import Verb, run_cli
from submission.editions import EDITIONS, MOMENTS

VERBS = {
    name: Verb(purpose, example, module=f"verbs.{name}")
    for name, purpose, example in (
        (
            "write",
            "write the file that an edition requires, from a score matrix or a finished run",
            "lbar submit write SCORES.npy --edition 2025 --out mine.output.csv",
        ),
        (
            "check",
            "list every problem of a submission file or a package",
            "lbar submit check mine.output.csv --edition 2025 --truth clotho_captions_evaluation.csv",
        ),
        (
            "score",
            "print the metrics of a CSV, a score matrix, or a finished run",
            "lbar submit score mine.output.csv --truth clotho_captions_evaluation.csv\n"
            "  lbar submit score mine.output.jsonl --truth castella_test_release.jsonl --edition 2026\n"
            "  lbar submit score runs/A:by_m1",
        ),
        (
            "compare",
            "compare one system with other systems by a paired test",
            "lbar submit compare blend.npy runs/A runs/B runs/C",
        ),
        (
            "blend",
            "combine several score matrices into one",
            "lbar submit blend a.npy b.npy --validation val_a.npy val_b.npy --how standardised --out blend.npy",
        ),
        (
            "rerank",
            "re-rank a score matrix by the scores of a judge",
            "lbar submit rerank scores.npy --judged judged.jsonl --validation val.npy val_judged.jsonl "
            "--out reranked.npy",
        ),
        (
            "report",
            "write a page on a finished run: metrics, failures, and clips to listen to",
            "lbar submit report runs/A:by_m1 --beside runs/B --out a.html",
        ),
        (
            "pack",
            "pack finished runs into the archive for the challenge",
            "lbar submit pack runs/A runs/B:by_m1 --about about.yaml --edition 2024 --report report.pdf "
            "--out package.zip",
        ),
    )
}


def main(argv: list[str] | None = None) -> int:
    """Run the verb named on the command line and return its exit status."""
    description = "Write, check and score the files of the language-based audio retrieval challenge."
    return run_cli("submission", description, VERBS, argv, add_edition)


def add_edition(parser: argparse.ArgumentParser) -> None:
    """Add the option --edition, which every verb of `lbar submit` accepts."""
    years = ", ".join([*EDITIONS, *MOMENTS])
    what = f"year of the challenge: one of {years} (default: the year noted in the run, scores or CSV header)"
    parser.add_argument("--edition", metavar="YEAR", help=what)


if __name__ == "__main__":
    sys.exit(main())
