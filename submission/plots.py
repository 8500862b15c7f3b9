"""Style of all figures.

All figures are readable on a phone, and for colour-blind readers. The colours are those of Okabe and Ito, which also
differ in lightness.
"""

import logging
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from data_tools.files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#aa4499", "#595959"


def new_figure(height: float = 3.2) -> "Figure":
    """Return an empty figure, 5.2 inches wide.

    On a phone it is about two thirds as wide, and its text stays readable.
    """
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # its first import logs messages about fonts
    from matplotlib.figure import Figure

    return Figure(figsize=(5.2, height), dpi=200, layout="constrained")


def encoded(figure: "Figure", kind: str = "svg") -> bytes:
    """Return a figure as SVG or PNG, with reproducible bytes."""
    import matplotlib

    data = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "lbar", "svg.fonttype": "path"}):
        figure.savefig(data, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return data.getvalue()


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as .svg or .png, with reproducible bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as file:
        file.write(encoded(figure, path.suffix.removeprefix(".")))
