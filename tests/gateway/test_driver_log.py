"""What a driver decides is recorded as it decides it, and comes out the same again."""

from __future__ import annotations
