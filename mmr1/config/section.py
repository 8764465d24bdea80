"""The base class of all sections, and the field types they share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Dtype = Literal["float32", "bfloat16"]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]


class Section(BaseModel):
    """A section: unknown keys are errors, and values are frozen after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)
