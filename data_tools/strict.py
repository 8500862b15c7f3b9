"""The base of every settings model: closed, strict, frozen."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Unknown keys and values of the wrong type are errors; nothing is converted; nothing changes after reading."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
