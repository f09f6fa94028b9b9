"""The bounds of the HTTP side, each explained by how to size it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Bytes and seconds.

    ``max_body_bytes``: a context of a million characters fits in the default, with room for escapes.
    ``max_bodies_bytes``: of all bodies that are read or wait to be tokenised; beyond it 503.
    ``body_read_s``, ``header_read_s``: how long a client may take to send a body, or a request's head.
    ``keep_alive_s``: an idle connection lives so long; longer than the balancer's own, which then closes first.
    ``max_connections``: open at once, streams and idle ones; beyond it 503. Each holds 10 KiB, or what it buffers.
    ``slow_client_s``: an answer or a stream whose client takes nothing for so long is cut.
    ``early_comment_s``: a stream with early headers says something so often; proxies give up after a minute or so.
    ``peer_timeout_s``: a peer that no longer answers (power loss, NAT drop) is found within about this time.
    ``linger_s``: after an answer, how long the unread rest of a body is thrown away before the connection closes.
    ``shutdown_s``: at the end, how long handlers may take; draining happens before.
    ``tokenizer_threads``: tokenising and chat templates at once; more than the cores do not help.
    """

    max_body_bytes: int = 4 * 1024 * 1024
    max_bodies_bytes: int = 256 * 1024 * 1024
    body_read_s: float = 15.0
    header_read_s: float = 15.0
    keep_alive_s: float = 75.0
    max_connections: int = 4096
    slow_client_s: float = 30.0
    early_comment_s: float = 5.0
    peer_timeout_s: int = 60
    linger_s: float = 2.0
    shutdown_s: float = 2.0
    tokenizer_threads: int = 2
