"""The reference of the HTTP API, made from its description in OpenAPI.

`python docs/api_reference.py` writes docs/api-reference.md; with `--check` it only says whether that is up to date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.openapi import describe
from gateway.routes import api_routes, description_route, metrics_route

PAGE = Path(__file__).parent / "api-reference.md"
TOP = """\
# Reference of the HTTP API

Made from the gateway's own description (`GET /openapi.json`, OpenAPI 3.1) by `docs/api_reference.py`. The rules that
hold for all of it, and those between parameters, are in [api.md](api.md).
"""
SCHEMAS = "#/components/schemas/"
Schema = Mapping[str, Any]


def page() -> str:
    """The whole page, in Markdown."""
    routes = [*api_routes(), metrics_route()]
    description = describe([*routes, description_route(routes)])
    schemas = description["components"]["schemas"]
    parts = [TOP]
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            parts += operation_part(f"{method.upper()} {path}", operation)
    parts += ["## Bodies and answers\n"]
    for name, schema in schemas.items():
        parts += schema_part(name, schema)
    return "\n".join(parts)


def operation_part(title: str, operation: Mapping[str, Any]) -> Iterator[str]:
    """One endpoint: what it takes, what it answers, how it refuses."""
    yield f"## `{title}`\n"
    yield f"{operation['summary']}{' No key is needed.' if operation.get('security') == [] else ''}\n"
    for parameter in operation["parameters"]:
        meaning = f": {parameter['description']}" if "description" in parameter else ""
        yield f"* `{parameter['name']}`, in the {parameter['in']}, {type_of(parameter['schema'])}{meaning}"
    if "requestBody" in operation:
        yield f"* Body: {type_of(operation['requestBody']['content']['application/json']['schema'])}"
    for status, response in operation["responses"].items():
        bodies = [body_of(media_type, content) for media_type, content in response["content"].items()]
        yield f"* {status}: {response['description']} {'; '.join(bodies)}"
    yield ""


def body_of(media_type: str, content: Mapping[str, Any]) -> str:
    schema = content.get("x-event", content["schema"])
    return (
        type_of(schema)
        if "$ref" in schema and media_type == "application/json"
        else f"`{media_type}` {type_of(schema)}"
    )


def schema_part(name: str, schema: Schema) -> Iterator[str]:
    """One object: its fields, those that say something first."""
    yield f"### {name}\n"
    yield " ".join(schema.get("description", "").replace("``", "`").split()) + "\n"
    fields = schema.get("properties", {})
    required = schema.get("required", ())
    told = {field: of for field, of in fields.items() if not is_neutral(of)}
    if told:
        yield "| field | type | meaning |\n|---|---|---|"
        for field, of in told.items():
            mark = ", required" if field in required else ""
            yield f"| `{field}` | {cell(type_of(of))}{mark} | {cell(of.get('description', ''))} |"
        yield ""
    neutral = [f"`{field}` ({values_of(of)})" for field, of in fields.items() if is_neutral(of)]
    if neutral:
        rule = "Not implemented; null, and the values in brackets, which change nothing, are accepted"
        yield f"{rule}: {', '.join(neutral)}.\n"


def is_neutral(schema: Schema) -> bool:
    """Whether a field is there only to be refused."""
    return None in schema.get("enum", ())


def values_of(schema: Schema) -> str:
    values = [f"`{json.dumps(value)}`" for value in schema["enum"] if value is not None]
    return ", ".join(values) or "none"


def type_of(schema: Schema) -> str:
    """A type in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(SCHEMAS)
        return f"[{name}](#{name.lower()})"
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    branches = schema.get("anyOf") or schema.get("oneOf")
    if branches:
        return " or ".join(dict.fromkeys(type_of(branch) for branch in branches))
    return f"{plain_type_of(schema)}{bounds_of(schema)}"


def plain_type_of(schema: Schema) -> str:
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {type_of(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {type_of(schema['additionalProperties'])}"
    return str(kind)


BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} members",
}


def bounds_of(schema: Schema) -> str:
    bounds = [text.format(schema[key]) for key, text in BOUNDS.items() if key in schema]
    return f" ({', '.join(bounds)})" if bounds else ""


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: Iterable[str]) -> int:
    wanted = page()
    if "--check" in argv:
        is_current = PAGE.exists() and PAGE.read_text() == wanted
        if not is_current:
            sys.stderr.write("docs/api-reference.md: the API changed; run `python docs/api_reference.py`\n")
        return int(not is_current)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
