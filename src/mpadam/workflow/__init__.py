"""What only the Snakefile asks of a study: inputs and parameters of rules, resources, container, signals. No torch."""

from mpadam.extras import require

require("pipeline")
