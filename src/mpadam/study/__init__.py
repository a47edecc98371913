"""The study: configuration, grids, run specifications and where everything lives. Imports no torch."""
