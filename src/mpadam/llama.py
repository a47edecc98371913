"""The shape of a LLaMA, and the four of the paper: GaLore's configurations (docs/algorithm.md, "Models")."""

from dataclasses import dataclass

PAPER_VOCABULARY = 32000


@dataclass(frozen=True)
class LlamaSize:
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int

    @property
    def projections(self) -> int:
        """Weights of attention and MLP projections of all layers, which FP8 and NVFP4 masters store low."""
        h, f = self.hidden_size, self.intermediate_size
        return self.layers * (4 * h * h + 3 * h * f)

    def parameters(self, vocab_size: int = PAPER_VOCABULARY) -> int:
        """Number of parameters, embedding and head untied, no biases."""
        norms = 2 * self.layers + 1
        return self.projections + (2 * vocab_size + norms) * self.hidden_size


PAPER_SIZES = {
    "60m": LlamaSize(hidden_size=512, intermediate_size=1376, layers=8, heads=8),
    "130m": LlamaSize(hidden_size=768, intermediate_size=2048, layers=12, heads=12),
    "350m": LlamaSize(hidden_size=1024, intermediate_size=2736, layers=24, heads=16),
    "1b": LlamaSize(hidden_size=2048, intermediate_size=5461, layers=24, heads=32),
}
