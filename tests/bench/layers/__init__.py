"""Where the time of a burst goes, layer by layer: `sluicegate up` with stopwatches in its worker and its gateway.

Nothing of this is in the product. ``up.py`` is the usual command, but starts its children through ``child.py``, which
puts timed calls (``stopwatch.py``) in the place of the functions that ``of_worker.py`` and ``of_gateway.py`` name, runs
the usual program, and writes down at its end what the stopwatches showed after each iteration (``marks.py``). From the
marks within a burst ``table.py`` makes one table.
"""
