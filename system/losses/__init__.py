"""The loss terms.

A new one is a class in terms.py, or a file in this folder and its import here.
"""

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, SerializeAsAny

from system.kinds import by_kind
from system.losses.terms import Term

Loss: TypeAlias = Annotated[SerializeAsAny[Term], BeforeValidator(by_kind(Term))]
