"""The record of what was decided: logs of events, of the plans that came of them, and what can be read out of a log.

* ``plain``: values as plain data, by their declared types · ``framing``: records as bytes that notice any damage
* ``entries``: what a log holds · ``snapshot``: the whole state of a scheduler as data
* ``verify``: the same events through the same scheduler again
* ``clocks``: one time for several logs · ``waiting``: the queue, from what the doors did
* ``story``, ``tell``: what happened at a driver · ``names``, ``sentences``, ``life_sentences``, ``explain``: in words
* ``picture``: as bars and levels · ``perfetto``: in the Chrome trace format · ``simulated``: logs of a simulation

All of it is pure: bytes in, bytes out. Files are the shell's business (``gateway.recording``).
"""
