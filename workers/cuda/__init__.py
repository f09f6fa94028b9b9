"""The worker on a GPU: attention on pages, decodes as CUDA graphs, and plans begun before the last report is read."""
