"""A verdict on every claim: the claims as data (`claimed`, one file each), statistics, verdicts, table and figure.

mpadam claims --config config.yaml --config studies/smoke.yaml --results results
"""

from mpadam.extras import require

require("pipeline")
