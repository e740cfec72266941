"""Names, numbers and ids with their bounds, as documents and site cards have them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Name = Annotated[str, Field(min_length=1, max_length=253)]
Label = Annotated[str, Field(min_length=1, max_length=63)]
AgentId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
SiteId = Annotated[int, Field(ge=1, le=65535)]
Port = Annotated[int, Field(ge=1, le=65535)]
