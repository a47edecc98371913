"""Text to training batches: sources, tokenizer, token files, loader. Imports neither torch nor transformers."""

from mpadam.extras import require

require("pipeline")

from mpadam.data.loader import Batch, TokenData, TrainBatches, ValidationSet  # noqa: E402

__all__ = ["Batch", "TokenData", "TrainBatches", "ValidationSet"]
