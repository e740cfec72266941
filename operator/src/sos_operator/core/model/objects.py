"""The type of an API object as JSON, defined once for all modules."""

from typing import Any

Object = dict[str, Any]
