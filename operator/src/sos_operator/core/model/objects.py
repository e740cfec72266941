"""The type of an API object as JSON: defined once, at the border."""

from typing import Any

Object = dict[str, Any]
