"""Clients that people use, as they are, against the real server.

They need the extra ``clients``: `make test-clients`.
"""
