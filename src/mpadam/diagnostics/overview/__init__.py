"""Figure 2: the two branches of M+Adam and the write-back, as a diagram."""
