"""What optimizers cost: the time of a step, and bytes per parameter.

mpadam measure step-time --out results/smoke/paper
"""
