"""The table of keys in ``docs/operating.md`` is that of ``admission/keys.py``; system tests ask Redis."""

from __future__ import annotations

import re

from tests.documented_keys import documented_keys, keys_of_the_code


def test_every_key_is_documented_with_its_lifetime_and_no_other_is() -> None:
    """An operator who finds a key in Redis looks it up there, and must find how long it stays."""
    variable_end = re.compile(r"(?<=:)[A-Z]+$")
    assert {variable_end.sub("", row.name): row.ttl_ms for row in documented_keys()} == keys_of_the_code()
