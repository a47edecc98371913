"""Table 1, measured: what an update can and cannot do. `measure` puts weights before it, `table` tells."""
