"""What every section of the configuration is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section: immutable, and it knows its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())
