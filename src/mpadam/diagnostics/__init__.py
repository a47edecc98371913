"""Small measurements that explain the large ones: each takes seconds on one CPU thread.

Their options are in `mpadam.study.diagnostics`, their figures and tables in `mpadam.exhibits`.

matrix_fitting   Figures 3 and 5: fitting a matrix whose weights are stored in bf16
capabilities     Table 1, measured: what an update cannot do, by optimizer, write-back and format
survival_grid    Figure 1: which updates survive rounding, against |w|
dataflow         Figures 7 to 9: dtypes and formats that a training step used
scene            weights among typical neighbours, put before an update on the real weight store

mpadam diagnose matrix-fitting --out results/smoke
"""

from mpadam.extras import require

require("pipeline")
