"""FP8 compute: the attention and MLP projections in FP8 with delayed scaling (docs/algorithm.md, (42)).

    scaling                 formats, scales that follow from past magnitudes, how much of the gradient e5m2 loses
    products, linear        casts, the three matrix products, the layer
    compute                 what the layers of a model share; torch alone (`native`, `emulated`)
    transformer_engine      the same by Transformer Engine
    convert, control        the two that training calls

Which of them a run uses is decided by `mpadam.study.auto`.
"""
