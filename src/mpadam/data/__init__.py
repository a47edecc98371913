"""Text to training batches: sources, tokenizer, token files, loader. Imports neither torch nor transformers."""

from mpadam.data.loader import Batch, TokenData, TrainBatches, ValidationSet

__all__ = ["Batch", "TokenData", "TrainBatches", "ValidationSet"]
