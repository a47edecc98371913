"""Figures 3 and 5: matrix fitting with bf16 weights. `fit` says what is computed, `produce` writes the files."""
