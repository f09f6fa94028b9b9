"""The welcome: the printed command must work as printed."""

from __future__ import annotations

import json
import shlex

from gateway.welcome import curl_line, welcome


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
