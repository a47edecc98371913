"""The results site: what a person opens to see a study.

mpadam site --config config.yaml --config studies/smoke.yaml
"""

from mpadam.extras import require

require("pipeline")
