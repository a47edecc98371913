"""From run folders to the paper's tables and figures: collect, statistics, cells, tables, figures, one style map.

mpadam aggregate --config config.yaml --config studies/smoke.yaml
"""

from mpadam.extras import require

require("pipeline")
