"""The schemas of files as they are shipped, and where a file departs from its own."""
from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from assay.run.events import Json


@cache
def schema(name: str) -> Json:
    """The JSON Schema (draft 2020-12) of a file: report (one line of it), bench, waivers."""
    text = resources.files("assay.report").joinpath(f"schemas/{name}.schema.json").read_text(encoding="utf-8")
    loaded: Json = json.loads(text)
    return loaded


def departure(name: str, content: Any) -> tuple[str, ValidationError] | None:
    """The first place that is not as the schema has it, and what is wrong there."""
    error = next(iter(_validator(name).iter_errors(content)), None)
    return None if error is None else ("/".join(map(str, error.absolute_path)) or "the file", error)


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(schema(name))
