"""Fewer threads for tests that compute little at a time."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """Use one thread: with so little work, several mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
