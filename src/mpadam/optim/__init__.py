"""Optimizers as rule x write-back x format.

    names, hyperparameters, schedules   what an optimizer is called, takes and follows; no torch in them
    rules, apollo                       the equations, pure float32 functions
    store                               the only place that rounds weights
    optimizer                           MPlusAdam, AdamW, Madam, AdditiveTwin: torch.optim.Optimizer
    groups, registry, memory            what training calls

This package imports nothing by itself, so that `mpadam.optim.names` can be read without torch.
"""
