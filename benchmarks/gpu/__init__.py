"""What `benchmarks/gpu_check.py` checks on a GPU.

parts          cases, rows, processes of their own, and the page that shows what was found
products       FP8 products of the backends against each other, and their saved state
runs           trainings: equal bits twice and after a kill, every regime, Liger against eager
optimizers     compiled steps against eager ones
rates          tokens/s and memory against the plan
waits          host synchronisations within a step
libraries      versions, and what is loaded from where
"""
