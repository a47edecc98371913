"""Tables and figures, one module each: `NAME`, `TITLE`, what it `NEEDS`, and `make(source)`, a `Table` or a `Picture`.

registry    finds these modules, for Snakemake, the page and the check of completeness
source      what they are made of
kit         what they share: tables, pictures, panels, legends, words

mpadam exhibit figure3 --folder results/smoke/paper
"""

from mpadam.extras import require

require("pipeline")
