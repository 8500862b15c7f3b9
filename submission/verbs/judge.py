"""Verb judge: ask a command.

Let a local command (the judge) score each pair of a query and one of its best clips.
"""

import argparse
import contextlib
import json
import shlex
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from data_tools.cli import counted, progress
from data_tools.documents.json_lines import is_number
from data_tools.errors import DataError
from data_tools.files import parse_json, require_other
from submission.errors import SubmissionError
from submission.formats.top_pairs import Pair, parse_pairs, read_pairs

ONE_LINE = 'the command must print {"judge": NUMBER} for each line, and nothing else'
AGAIN = "run `judge` again to continue after the pairs that were scored"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the verb `judge` to its parser."""
    add = parser.add_argument
    add("pairs", type=Path, metavar="TOP.jsonl", help="pairs of queries and clips, written by system rank --top K")
    command = (
        'program that reads pairs, each as a line of JSON, and prints {"judge": NUMBER} or {"judge": null} for each '
        "pair, in the same order"
    )
    add("--command", required=True, metavar="COMMAND", help=command)
    add(
        "--out",
        type=Path,
        required=True,
        metavar="JUDGED.jsonl",
        help="file to write, with the pairs and the judge's scores; `judge` continues an unfinished file",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the verb `judge`: let a command score the best clips of each query; return the exit status."""
    require_other(arguments.out, [arguments.pairs])
    command = _split_command(arguments.command)
    pairs = read_pairs(arguments.pairs)
    done = _count_judged(arguments.out, pairs)
    if done < len(pairs):
        with arguments.out.open("ab") as out:
            _judge_pairs(command, pairs[done:], out, done)
    print(f"wrote {arguments.out}: {counted(len(pairs), 'judged pair', ',')}, {done:,} of them by an earlier call")
    return 0


def _split_command(command: str) -> list[str]:
    """Split the command line of --command into words. Raises SubmissionError if its quotes do not match."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise SubmissionError(
            f"--command {command}: the command cannot be read ({error}); correct its quotes"
        ) from None


def _count_judged(out: Path, pairs: Sequence[Pair]) -> int:
    """Remove an incomplete last line from the file `out` of judged pairs, if it exists; return its number of pairs.

    The lines of the file must be the first of `pairs`, in the same order; otherwise the function raises SubmissionError
    and does not change the file.
    """
    if not out.exists():
        return 0
    data = out.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    found = parse_pairs(whole, out) if whole else []
    rest = data[len(whole) :]
    following = pairs[len(found)].line.encode()[:-2] if len(found) < len(pairs) else b""
    is_cut_line = following != b"" and following.startswith(rest[: len(following)])
    is_same = [one._replace(judge=None) for one in found] == [one._replace(judge=None) for one in pairs[: len(found)]]
    if not is_same or not (whole == data or is_cut_line):
        raise SubmissionError(
            f"{out} already exists and has other pairs than the file to judge; give another --out, or remove {out.name}"
        )
    if whole != data:
        out.write_bytes(whole)
    return len(found)


def _judge_pairs(command: Sequence[str], pairs: Sequence[Pair], out: IO[bytes], done: int) -> None:
    """Start the command, send it the pairs, and append each judged pair to `out`. done: Number of pairs judged before.

    `done` is only used in messages. Raises SubmissionError if the command cannot be started, ends early or with an
    error, or prints anything except one score per pair.
    """
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except (OSError, IndexError) as error:
        raise SubmissionError(
            f"--command {' '.join(command)}: the command cannot be started ({error}); correct it"
        ) from None
    assert process.stdin is not None
    assert process.stdout is not None
    sending = threading.Thread(target=_send_pairs, args=(process.stdin, pairs), daemon=True)
    sending.start()
    try:
        with progress("judge", len(pairs), "pair") as bar:
            for number, pair in enumerate(pairs, done + 1):
                score = _parse_score(process.stdout.readline(), process, number)
                judged = json.loads(pair.line) | {"judge": score}
                out.write(json.dumps(judged, ensure_ascii=False).encode() + b"\n")
                out.flush()
                bar.advance()
        if more := process.stdout.readline():
            raise SubmissionError(f"the judge printed more than {len(pairs)} answers ({more[:60]!r}); {ONE_LINE}")
        if status := process.wait():
            raise SubmissionError(f"the judge ended with status {status} after the last answer; all scores are stored")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        sending.join(1)  # a program that the command has started may still keep its input open


def _send_pairs(file: IO[bytes], pairs: Sequence[Pair]) -> None:
    """Write the pairs to the input of the command; stop without an error if the command ends early."""
    with contextlib.suppress(OSError), file:
        for pair in pairs:
            file.write(pair.line.encode())
            file.flush()


def _parse_score(line: bytes, process: "subprocess.Popen[bytes]", number: int) -> float | None:
    """Return the score in a line that the command printed, None for null. Raises SubmissionError for any other text.

    number: Number of the pair, from 1, for messages.
    """
    if not line:
        raise SubmissionError(
            f"the judge's answer to pair {number} is missing: the command ended with status {process.wait()}; {AGAIN}"
        )
    with contextlib.suppress(DataError):
        content = parse_json(line, "answer")
        if isinstance(content, dict) and (content.get("judge", "") is None or is_number(content.get("judge"))):
            score: float | None = content["judge"]
            return score
    raise SubmissionError(f"the judge's answer to pair {number} is {line[:60]!r}; {ONE_LINE}")
