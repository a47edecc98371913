"""Optimizers as rule x write-back x format.

    names, hyperparameters, schedules   what an optimizer is called, takes and follows; no torch in them
    rules                               one file per rule: its card and its equations; no torch when a card is read
    card, branches, apollo              what cards are made of, and the equations that rules share
    store                               the only place that rounds weights
    optimizer                           a class per rule (MPlusAdam, AdamW, ...): torch.optim.Optimizer
    cautions                            what an optimizer warns of
    groups, registry, memory            what training calls

This package imports nothing by itself, so that `mpadam.optim.names` can be read without torch.
"""
