"""Where this machine computes."""

import torch


def device_of() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
