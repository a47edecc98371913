"""LLaMA models: the paper's four sizes and any smaller one, built from Transformers with weights of a given seed."""

from mpadam.extras import require

require("pipeline")
