"""Keys from a file: digests only, and every mistake named without repeating one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from admission.classes import DEFAULT_CLASSES, STANDARD
from gateway.class_table import ClassTable
from gateway.key_file import MOST_KEYS, ApiKey, read_keys
from gateway.settings import GatewaySettings
from gateway.settings_sources import BadSettings

CLASSES = ClassTable(DEFAULT_CLASSES)
DIGEST = hashlib.sha256(b"a key").hexdigest()


def written(tmp_path: Path, content: str) -> Path:
    file = tmp_path / "keys.toml"
    file.write_text(content)
    return file


def test_a_key_has_a_tenant_and_may_have_limits(tmp_path: Path) -> None:
    """What is not written is not limited, and a key is its own tenant."""
    other = hashlib.sha256(b"another").hexdigest()
    file = written(
        tmp_path,
        f'[web]\nsha256 = "{DIGEST}"\ntenant = "acme"\nclass-ceiling = "standard"\nmax-concurrent = 8\n'
        f'[jobs]\nsha256 = "{other}"\n',
    )
    assert read_keys(file, CLASSES) == (
        ApiKey(name="web", digest=bytes.fromhex(DIGEST), tenant="acme", ceiling=STANDARD, max_concurrent=8),
        ApiKey(name="jobs", digest=bytes.fromhex(other), tenant="jobs"),
    )


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ('sha256 = "short"', "web.sha256"),
        (f'sha256 = "{DIGEST.upper()}"', "web.sha256"),
        ('tenant = "a b"', "web.tenant"),
        ('tenant = ""', "web.tenant"),
        ('class-ceiling = "urgent"', "web.class-ceiling: should be one of interactive, standard, batch"),
        ("max-concurrent = 0", "web.max-concurrent"),
        ('key = "a key"', "web.key: is not a known field"),
    ],
)
def test_a_wrong_field_is_named_and_no_digest_is_repeated(tmp_path: Path, line: str, place: str) -> None:
    """Errors go to logs and terminals."""
    first = "" if line.startswith("sha256") else f'sha256 = "{DIGEST}"\n'
    with pytest.raises(ValueError, match=place) as raised:
        read_keys(written(tmp_path, f"[web]\n{first}{line}\n"), CLASSES)
    assert DIGEST not in str(raised.value).lower()


def test_one_key_under_two_names_is_a_mistake(tmp_path: Path) -> None:
    """Whose limits would count?"""
    with pytest.raises(ValueError, match=r"b\.sha256: is the key of a as well"):
        read_keys(written(tmp_path, f'[a]\nsha256 = "{DIGEST}"\n[b]\nsha256 = "{DIGEST}"\n'), CLASSES)


def test_more_keys_than_can_be_compared_are_refused(tmp_path: Path) -> None:
    """Every request is compared with all of them."""
    lines = [
        f'[k{number}]\nsha256 = "{hashlib.sha256(bytes([number % 256, number // 256])).hexdigest()}"\n'
        for number in range(MOST_KEYS + 1)
    ]
    with pytest.raises(ValueError, match=f"1 to {MOST_KEYS}"):
        read_keys(written(tmp_path, "".join(lines)), CLASSES)
    assert len(read_keys(written(tmp_path, "".join(lines[:-1])), CLASSES)) == MOST_KEYS


def test_a_bad_file_of_keys_is_a_bad_setting(tmp_path: Path) -> None:
    """Before anything starts; it would be open otherwise, or closed to everybody."""
    with pytest.raises(BadSettings, match=r"--api-keys .*none\.toml: cannot be read"):
        GatewaySettings.load(["--api-keys", str(tmp_path / "none.toml")])
    with pytest.raises(BadSettings, match="has 0 tables"):
        GatewaySettings.load(["--api-keys", str(written(tmp_path, ""))])
