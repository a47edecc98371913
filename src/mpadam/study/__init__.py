"""The study: configuration, grids, specifications of runs, paths, random streams, reading a run folder. No torch."""
