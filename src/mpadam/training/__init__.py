"""Training of one run folder: loop, evaluation, checkpoints, records. `mpadam train --run-dir D` is the way in."""

from mpadam.extras import require

require("pipeline")
