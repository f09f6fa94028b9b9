"""Clients that people use, against the real server. They need the extra ``clients``: `make test-clients`."""
