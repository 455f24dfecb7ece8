"""The common ground of everything described in TOML."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from farstep.fabric.errors import check_keys


class Table(BaseModel):
    """A table of a description: immutable, and no unknown key passes silently."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known(cls, table: Any) -> Any:
        check_keys(table, cls.model_fields)
        return table
