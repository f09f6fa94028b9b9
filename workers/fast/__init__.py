"""A faster forward pass on the CPU, for the common family of decoders; see docs/performance.md."""
