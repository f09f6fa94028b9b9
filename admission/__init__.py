"""Every decision of Sluicegate: what may wait, what runs in each iteration, what is refused.

The pure ring (everything but ``redis_queue``, ``scripts`` and ``lua/``) is synchronous and deterministic: time enters
as an argument in integer microseconds, and nothing here reads a clock, randomness, the environment, a socket or a log.
"""
