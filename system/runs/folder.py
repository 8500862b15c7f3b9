"""A run on disk: one folder that says what was done, with what, and what came of it.

<runs>/<date>_<recipe>_s<seed>_<commit>/
  recipe.yaml      the recipe's bytes            resolved.json    every setting; as a recipe it gives the same run
  provenance.json  versions, machine, data       log.txt          what was said
  vocabulary.json  words, for text from scratch  metrics.jsonl    a line an epoch
  trained_on.csv   clips it learned from
  <stage>/         last.pt, the best checkpoints, checkpoints.json, done.json
  scores/  submission/  figures/   score matrices and what they are of, ranked lists, curves
  result.json      written last: exists = finished
"""

import json
import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from data_tools.documents.json_text import require_unharmed
from data_tools.errors import KitError
from data_tools.files import remove_parts, write_text
from data_tools.locks import lock
from submission.runs.reading import made_again, read_metrics, read_provenance, read_result
from submission.runs.record import EpochLine, Provenance, RunResult
from system.runs.log_file import LogFile

TRAINED_ON = "trained_on.csv"  # also in an exported model

log = logging.getLogger(__name__)


class Run:
    """Where the files of a run are, and reading them.

    made: the folder and those above it that were not there before, if any, from the inside out. ranks_anew: what it is
    to rank differs from what it ranked, or was to rank, before; what it trains does not.
    """

    def __init__(self, folder: Path, made: tuple[Path, ...] = (), ranks_anew: bool = False) -> None:
        self.folder, self.made, self.ranks_anew = folder, made, ranks_anew
        self.result, self.provenance = folder / "result.json", folder / "provenance.json"
        self.metrics, self.vocabulary = folder / "metrics.jsonl", folder / "vocabulary.json"
        self.figures, self.trained_on = folder / "figures", folder / TRAINED_ON

    def scores_file(self, name: str) -> Path:
        return self.folder / "scores" / f"{name}.npy"

    def csv_file(self, name: str) -> Path:
        """The challenge's file of an entry."""
        return self.folder / "submission" / f"{name}.csv"

    def clips_file(self, name: str) -> Path:
        """What was ranked: see submission.runs.clips."""
        return self.folder / "scores" / f"{name}.clips.csv"

    def again(self, *damaged: Path) -> str:
        """The end of a sentence on damaged files: what to delete, and the command that then makes them again."""
        return made_again(self.folder, *damaged)

    def read_provenance(self) -> Provenance:
        """DataError when it, or one of the files it has the checksums of, is missing or damaged."""
        found = read_provenance(self.folder)
        for name, checksum in found.sha256.items():
            require_unharmed(self.folder / name, checksum, self.again(self.folder / name))
        return found

    def read_result(self) -> RunResult:
        return read_result(self.folder)

    def read_metrics(self, hint: str | None = None) -> list[EpochLine]:
        return read_metrics(self.metrics, hint or self.again(self.metrics))

    def write_metrics(self, lines: Iterable[EpochLine]) -> None:
        """Write metrics.jsonl with the lines that the checkpoints hold, and no others."""
        text = "".join(json.dumps(line.document()) + "\n" for line in lines).encode()
        found = self.metrics.read_bytes() if self.metrics.exists() else None
        if found is not None and not found.startswith(text):
            log.warning("%s had lost lines or was damaged; it is written again from the checkpoints", self.metrics)
        if found != text:
            write_text(self.metrics, text.decode())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """No second process may work on the run meanwhile; its log goes to log.txt too. What killed processes left
        half written is removed; so is a new run that an error ends before it has trained anything."""
        busy = f"{self.folder}: another process is working on this run; wait for it, or stop it"
        with lock(self.folder / "lock", busy):
            remove_parts(self.folder)
            with closing(LogFile(self.folder / "log.txt")) as handler:
                logging.getLogger().addHandler(handler)
                try:
                    yield
                except (KitError, OSError):
                    self._remove_untrained()
                    raise
                finally:
                    logging.getLogger().removeHandler(handler)

    def _remove_untrained(self) -> None:
        if self.made and not any(self.folder.glob("*/last.pt")):
            shutil.rmtree(self.folder)
            with suppress(OSError):  # of a folder that holds other runs by now
                for above in self.made[1:]:
                    above.rmdir()
