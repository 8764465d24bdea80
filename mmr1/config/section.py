"""The base class of all sections, and the field types they share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from mmr1.cpu_flags import auto_dtype

Dtype = Literal["float32", "bfloat16"]


def _resolved(value: Any) -> Any:
    return auto_dtype() if value == "auto" else value


AutoDtype = Annotated[Dtype, BeforeValidator(_resolved)]
"""``auto`` becomes what suits this machine, so that the configuration of a run names it."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(gt=0)]


class Section(BaseModel):
    """A section: unknown keys are errors, and values are frozen after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)
