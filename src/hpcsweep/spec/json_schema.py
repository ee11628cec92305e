"""The JSON Schemas with which editors complete and check sweep files and profiles."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def text(model: type[BaseModel], title: str) -> str:
    """Return a model's schema as it is committed: titled, without pydantic's titles."""
    whole = {"$schema": _DIALECT, **_untitled(model.model_json_schema()), "title": title}
    return json.dumps(whole, indent=1, sort_keys=True) + "\n"


def _untitled(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Drop the titles that pydantic derives from names; a key named title is not one of them."""
    if isinstance(value, list):
        return [_untitled(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _untitled(item)
        for key, item in value.items()
        if key != "title" or not isinstance(item, str)
    }
