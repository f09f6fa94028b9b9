"""The README's tables of settings, made from the settings themselves.

`python docs/settings_table.py` rewrites them; with `--check` it only says whether they are up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from gateway.settings import GatewaySettings, UpSettings
from gateway.settings_sources import flag_of
from workers.settings import WorkerSettings

README = Path(__file__).parents[1] / "README.md"
BEGIN = "<!-- settings: made by docs/settings_table.py -->"
END = "<!-- settings end -->"

COMMANDS = {"up": UpSettings, "gateway": GatewaySettings, "worker": WorkerSettings}


def tables() -> str:
    """One table per command, in Markdown; what `up` has already told is not repeated."""
    parts: list[str] = []
    told: dict[str, str] = {}
    for command, settings in COMMANDS.items():
        rows = {name: row(name, field) for name, field in settings.model_fields.items()}
        fresh = [text for name, text in rows.items() if told.get(name) != text]
        same = [f"`{flag_of(name)}`" for name, text in rows.items() if told.get(name) == text]
        parts += [f"### `sluicegate {command}`", "", "| flag | default | meaning |", "|---|---|---|", *fresh, ""]
        if same:
            parts += [f"And, as above: {', '.join(same)}.", ""]
        told |= rows
    return "\n".join(parts)


def row(name: str, field: FieldInfo) -> str:
    meaning = f"{field.description}{choices(field.annotation)}".replace("|", "\\|")
    return f"| `{flag_of(name)}` | {default_of(field)} | {meaning} |"


def default_of(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "host name and process id"
    return "" if field.default in (None, ()) else f"`{field.default}`"


def choices(annotation: object) -> str:
    if get_origin(annotation) is not Literal:
        return ""
    return ": " + ", ".join(f"`{choice}`" for choice in get_args(annotation))


def with_tables(text: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{README} lacks the marks between which the tables belong")
    return f"{before}{begin}\n\n{tables()}\n{end}{after}"


def main(argv: Iterable[str]) -> int:
    text = README.read_text()
    wanted = with_tables(text)
    if "--check" in argv:
        if text != wanted:
            sys.stderr.write("README.md: the settings changed; run `python docs/settings_table.py`\n")
        return int(text != wanted)
    README.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
