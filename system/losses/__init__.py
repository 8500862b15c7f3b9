"""List of loss terms. A new one is a class in terms.py, or a file in this folder and its import here."""

from typing import TYPE_CHECKING

from data_tools.settings import closed_list
from system.losses import terms

if TYPE_CHECKING:
    Loss = terms.Term
else:
    Loss = closed_list({**vars(terms), **globals()}, terms.Term)
