"""Files of a run folder.

They are settings, provenance, checkpoints and results.

<runs>/<date>_<recipe>_s<seed>_<commit>/
  recipe.yaml      copy of the recipe file
  resolved.json    every setting; used as a recipe, this file results in the same run
  provenance.json  versions, machine, and checksums of the data
  log.txt          log messages
  vocabulary.json  known words of a text encoder from scratch
  metrics.jsonl    one line of metrics per epoch
  trained_on.csv   clips that the model was trained on
  <stage>/         last.pt, the best checkpoints, checkpoints.json, done.json
  scores/          score matrices, and the clips and queries that they rank
  submission/      ranked lists
  figures/         curves of the metrics
  result.json      written last; if it exists, the run is finished
"""

import json
import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from data_tools.errors import KitError
from data_tools.files import lock, remove_parts, require_unharmed, write_text
from submission.runs.reading import read_metrics, read_provenance, read_result, repair_hint
from submission.runs.record import EpochLine, Provenance, RunResult
from system.runs.log_file import LogFile

TRAINED_ON = "trained_on.csv"  # exported models have this file too

log = logging.getLogger(__name__)


class Run:
    """Paths and readers of the files of a run.

    made: Folders that did not exist before this run: the run's folder and its parents, innermost first. ranks_again:
    Whether the recipe differs from the run's earlier recipe in the setting `rank`, and in no other setting.
    """

    def __init__(self, folder: Path, made: tuple[Path, ...] = (), ranks_again: bool = False) -> None:
        """Set the paths of the run's files. made: Folders created for it. ranks_again: Rank a trained run again."""
        self.folder, self.made, self.ranks_again = folder, made, ranks_again
        self.result, self.provenance = folder / "result.json", folder / "provenance.json"
        self.metrics, self.vocabulary = folder / "metrics.jsonl", folder / "vocabulary.json"
        self.figures, self.trained_on = folder / "figures", folder / TRAINED_ON

    def scores_file(self, name: str) -> Path:
        """Return the path of a rank entry's score matrix."""
        return self.folder / "scores" / f"{name}.npy"

    def csv_file(self, name: str) -> Path:
        """Return the path of a rank entry's submission file."""
        return self.folder / "submission" / f"{name}.csv"

    def clips_file(self, name: str) -> Path:
        """Return the path of a rank entry's table of ranked clips, whose format is in submission.runs.clips."""
        return self.folder / "scores" / f"{name}.clips.csv"

    def repair_hint(self, *damaged: Path) -> str:
        """Describe how to repair damaged files, as the end of an error message.

        The text names the files to delete, and the command that restores them.
        """
        return repair_hint(self.folder, *damaged)

    def read_provenance(self) -> Provenance:
        """Read the run's provenance, and verify the checksums of the files that it lists.

        Raises DataError if any of these files is missing or damaged.
        """
        found = read_provenance(self.folder)
        for name, checksum in found.sha256.items():
            require_unharmed(self.folder / name, checksum, self.repair_hint(self.folder / name))
        return found

    def read_result(self) -> RunResult:
        """Read the run's result.json."""
        return read_result(self.folder)

    def read_metrics(self, hint: str | None = None) -> list[EpochLine]:
        """Read the run's metrics.jsonl: one line per epoch. hint: Cure for a damaged file, for the message."""
        return read_metrics(self.metrics, hint or self.repair_hint(self.metrics))

    def write_metrics(self, lines: Iterable[EpochLine]) -> None:
        """Replace the content of metrics.jsonl, if it differs."""
        text = "".join(json.dumps(line.document()) + "\n" for line in lines)
        if not self.metrics.exists() or self.metrics.read_text(encoding="utf-8") != text:
            write_text(self.metrics, text)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Context manager that locks the run against other processes, and copies log messages to log.txt.

        Partial files of killed processes are removed. The folder of a new run is removed if the run fails before any
        training.
        """
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
        """Delete the folder of a new run that has not been trained."""
        if self.made and not any(self.folder.glob("*/last.pt")):
            shutil.rmtree(self.folder)
            with suppress(OSError):  # the folder holds other runs by now
                for above in self.made[1:]:
                    above.rmdir()
