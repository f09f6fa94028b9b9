"""How the help of commands with explanations of their own is laid out: no line is wider than the terminal."""

from __future__ import annotations

import argparse
import re
import textwrap

_LABEL = re.compile(r"\s*\S+(?: {2,}|: )|\s*")


class FoldedHelp(argparse.RawDescriptionHelpFormatter):
    """Keeps lines as they are written; what is too long goes on below where the text beside its label begins."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(f"{indent}{line}\n" for written in text.splitlines() for line in _folded(written, width))


def _folded(line: str, width: int) -> list[str]:
    label = _LABEL.match(line)
    below = " " * (len(label[0]) if label else 0)
    return textwrap.wrap(line, width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False) or [""]
