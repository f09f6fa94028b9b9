"""The welcome: the printed command must work as printed."""

from __future__ import annotations

import json
import shlex

from gateway.welcome import KEY_HEADER, curl_line, welcome


def test_the_curl_line_is_a_shell_command_with_a_valid_body() -> None:
    """People paste it, whatever the model is called."""
    words = shlex.split(curl_line("http://127.0.0.1:8080", 'it\'s "quoted"'))

    assert words[:3] == ["curl", "-N", "http://127.0.0.1:8080/v1/chat/completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == 'it\'s "quoted"'
    assert body["stream"] is True


def test_every_address_is_told() -> None:
    """Several gateways listen on consecutive ports."""
    text = welcome(["http://127.0.0.1:8080", "http://127.0.0.1:8081"], "m", 3.21)
    assert "http://127.0.0.1:8080/v1, http://127.0.0.1:8081/v1" in text
    assert "3.2 s" in text


def test_where_there_are_keys_the_command_says_where_to_put_one() -> None:
    """Pasted as it is, it says what is missing."""
    words = shlex.split(welcome(["http://127.0.0.1:8080"], "m", 3.21, (KEY_HEADER,)).splitlines()[5])
    assert [words[place + 1] for place, word in enumerate(words) if word == "-H"] == [
        "Content-Type: application/json",
        "Authorization: Bearer YOUR-KEY",
    ]
