"""Why `sluicegate simulate` refuses: its input, or one of its options. Each message is one line."""

from __future__ import annotations


class InputError(ValueError):
    """The input cannot be used. The message names the line or field, where there is one."""


class OptionError(ValueError):
    """An option cannot be used. The message names it, what was given, and what is allowed."""
