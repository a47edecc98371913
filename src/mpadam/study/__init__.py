"""The study: configuration, grids, specifications of runs, paths, random streams, reading a run folder. No torch."""

from mpadam.extras import require

require("pipeline")
