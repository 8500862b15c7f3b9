"""ATST-Frame: web address, sizes.

The address is that of the published weights; the sizes are those of the network. Never imports torch.

Source: Li et al., "Self-Supervised Audio Teacher-Student Transformer for Both Clip-Level and Frame-Level Tasks" (2023);
github.com/OptimusPrimus/salsa.
"""

ADDRESS = (
    "Google Drive, id 1bGJSZWlAIIJ6GL5Id5dW0PTB72DL-QDQ (atstframe_base.ckpt), "
    "linked from github.com/Audio-WestlakeU/audiossl"
)
RATE = 32_000  # Hz, of input waves
RATE_INSIDE = 16_000  # Hz, after its resampling
FFT = 1024
HOP = 160  # samples
BANDS = 64
LOWEST, HIGHEST = 60.0, 7800.0  # Hz
MIN_POWER = 1e-10
RANGE = 80.0  # dB below the largest value
LOW, HIGH = -50.0, 80.0  # dB, to which values are clipped
MEAN, SPAN = 79.6482, 130.3324
SLICE = 4  # columns
DIM = 768
HEADS = 12
FFN_DIM = 3072
BLOCKS = 12
POSITIONS = 250
LIMITS = SLICE * HOP / RATE_INSIDE, POSITIONS * SLICE * HOP / RATE_INSIDE  # seconds
PARAMETERS = 85_419_264
