"""Answers held against the SDK's own types, more strictly than the SDK does: it builds its objects without a check."""

import types
from typing import Any, TypeVar, get_args, get_origin

from openai import BaseModel

T = TypeVar("T", bound=BaseModel)

EXTENSIONS = {"stop_reason", "reasoning", "engine", "max_model_len"}
"""Fields that OpenAI does not have: each is in docs/openai.md."""


def check(cls: type[T], raw: Any) -> T:
    """`raw` as a `cls`. Fails for a missing or mistyped field, and for one that the type does not know."""
    if isinstance(raw, BaseModel):
        raw = raw.to_dict(mode="json")
    unknown = sorted(_unknown(cls, raw, cls.__name__))
    assert not unknown, unknown
    return cls.model_validate(raw, strict=False)


def _unknown(expected: Any, value: Any, path: str) -> set[str]:
    """Paths of the fields in `value` that the type `expected` has not."""
    if isinstance(value, list):
        inner = next((get_args(option)[0] for option in _options(expected) if get_origin(option) is list), Any)
        return {found for item in value for found in _unknown(inner, item, path)}
    models = [option for option in _options(expected) if isinstance(option, type) and issubclass(option, BaseModel)]
    if not isinstance(value, dict) or not models:
        return set()
    found = set()
    for name, item in value.items():
        known = [model.model_fields[name].annotation for model in models if name in model.model_fields]
        if known:
            found |= _unknown(known[0], item, f"{path}.{name}")
        elif name not in EXTENSIONS:
            found.add(f"{path}.{name}")
    return found


def _options(expected: Any) -> list[Any]:
    """The members of a union, however deep in Optional and Annotated; else the type itself."""
    if getattr(expected, "__metadata__", None):
        return _options(get_args(expected)[0])
    if isinstance(expected, types.UnionType) or str(get_origin(expected)) == "typing.Union":
        return [option for member in get_args(expected) for option in _options(member)]
    return [expected]
