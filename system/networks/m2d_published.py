"""M2D and M2D-CLAP: web addresses, sizes, geometries.

The geometry is the size of a network's input (bands x columns of a log-mel) and of its patches. It is in the name of
the network's file, such as 80x608p16x16. Never imports torch.

Source: Niizumi et al., "Masked Modeling Duo" (2024) and "M2D-CLAP" (2024, 2025); github.com/nttcslab/m2d at f0c4128.
"""

import re
from pathlib import Path
from typing import Literal, NamedTuple

Bands = Literal["stacked", "mean"]

_RELEASES = "https://github.com/nttcslab/m2d/releases/download"

ADDRESSES = {
    "m2d_vit_base-80x608p16x16-221006-mr7.zip": "v0.1.0",
    "m2d_vit_base-80x608p16x16-221006-mr7_enconly.zip": "v0.1.0",
    "m2d_as_vit_base-80x608p16x16-240213.zip": "v0.1.0",
    "m2d_vit_base-80x200p16x4-230529.zip": "v0.1.0",
    "m2d_clap_vit_base-80x608p16x16-240128.zip": "v0.1.0",
    "m2d_as_vit_base-80x1001p16x16-240213_AS-FT_enconly.zip": "v0.3.0",
    "m2d_clap_vit_base-80x1001p16x16-240128_AS-FT_enconly.zip": "v0.3.0",
    "m2d_vit_base-80x1001p16x16-221006-mr7_as_46ab246d.zip": "v0.3.0",
    "m2d_as_vit_base-80x1001p16x16p32k-240413_AS-FT_enconly.zip": "v0.3.0",
}
CLAP_FILE = "m2d_clap_vit_base-80x1001p16x16p16kpBpTI-2025.zip"
CLAP_ADDRESS = f"{_RELEASES}/v0.5.0/{CLAP_FILE}"
LICENCE = "NTT evaluation, non-commercial"  # LICENSE.pdf of the repository: internal use, revocable

MIN_POWER = 2.0**-23
LOWEST = 50.0  # Hz; the highest frequency is half of the rate
NORM_STATS = -7.1, 4.2  # mean and deviation of the log-mel; of files without `norm_stats`
DIM = 768
HEADS = 12
FFN_DIM = 3072
BLOCKS = 12
EPS = 1e-6  # of the layer norms
SEMANTIC_FFN_DIM = 768  # of the block after the network in M2D-CLAP, which has one head
SEMANTIC_EPS = 1e-5
LONGEST = 600.0  # seconds
PARAMETERS = 85_400_834  # of base 80x608p16x16
CLAP_PARAMETERS = 89_041_922  # of M2D-CLAP 2025, without its text encoder


class Geometry(NamedTuple):
    """Input of a network. columns: Of a chunk. patch_bands, patch_columns: Of a patch. rate: Hz."""

    bands: int
    columns: int
    patch_bands: int
    patch_columns: int
    rate: int

    @property
    def rows(self) -> int:
        """Number of patches along the frequency axis."""
        return self.bands // self.patch_bands

    @property
    def steps(self) -> int:
        """Number of patches in time in a chunk; the last columns of a chunk may be in no patch."""
        return self.columns // self.patch_columns

    @property
    def size(self) -> int:
        """Number of samples of a spectrogram column, 25 ms."""
        return self.rate // 40

    @property
    def hop(self) -> int:
        """Number of samples from one spectrogram column to the next, 10 ms."""
        return self.rate // 100

    def frame_count(self, seconds: float) -> int:
        """Return the number of frames of a segment: 63 for 10 s in chunks of 608 columns, 62 in chunks of 1,001."""
        full, rest = divmod(round(seconds * self.rate) // self.hop + 1, self.columns)
        return full * self.steps + min(self.steps, -(-rest // self.patch_columns))

    @property
    def limits(self) -> tuple[float, float]:
        """Shortest and longest possible input, in seconds.

        The shortest input has just enough samples for its padding by reflection.
        """
        return (self.size // 2 + 1) / self.rate, LONGEST


CLAP_GEOMETRY = Geometry(80, 1001, 16, 16, 16_000)


def parse_geometry(text: str) -> Geometry | None:
    """Parse the input geometry (mel bands x columns, patch size) in a text, such as "80x608p16x16"; None if missing."""
    found = re.search(r"(\d+)x(\d+)p(\d+)x(\d+)(?:p(16|32)k)?", text)
    if found is None:
        return None
    bands, columns, patch_bands, patch_columns = map(int, found.groups()[:4])
    is_possible = 0 < patch_bands <= bands and 0 < patch_columns <= columns
    return Geometry(bands, columns, patch_bands, patch_columns, int(found[5] or 16) * 1000) if is_possible else None


def read_geometry_from_path(path: Path) -> Geometry | None:
    """Read the geometry (input and patch size) from the name of a .zip, or of a .pth's folder; None without one."""
    return parse_geometry(path.name) or parse_geometry(path.parent.name)


def choose_geometry(text: str | None, weights: str | None) -> Geometry:
    """Return the sizes of a network's input and patches, read from `text`; without `text`, from the weight file's name.

    text: The setting, such as 80x608p16x16. Raises ValueError if neither has sizes, or if both have sizes that differ.
    """
    of_file = read_geometry_from_path(Path(weights)) if weights else None
    if text is None:
        if of_file is None:
            name = weights or "the weights"
            raise ValueError(
                f"the name of {name} contains no geometry (sizes of input and patches); set `geometry`, for example to "
                "80x608p16x16"
            )
        return of_file
    of_text = parse_geometry(text)
    if of_text is None:
        raise ValueError(f"{text} is not a geometry; write for example 80x608p16x16 or 80x1001p16x16p32k")
    if of_file not in (None, of_text):
        raise ValueError(f"geometry {text} differs from the geometry in the name of {weights}; correct it, or set null")
    return of_text


def find_address(path: Path) -> str:
    """Return, for messages, where to download a published file, known by the name of the file or its folder."""
    for name, release in ADDRESSES.items():
        if path.name == name:
            return f"{_RELEASES}/{release}/{name}"
        if path.parent.name == name.removesuffix(".zip"):
            return f"the archive {_RELEASES}/{release}/{name}; unpack it, or name the archive itself"
    return "github.com/nttcslab/m2d/releases (keep the name of the file, or of its folder)"
