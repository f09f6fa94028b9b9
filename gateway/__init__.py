"""The HTTP side of Sluicegate: the OpenAI API, tokenising, the driver loop of each worker, streaming. Never torch."""
