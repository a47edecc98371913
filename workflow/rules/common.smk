# Configuration, paths and names that the other rules share.
#
# Inputs:  `config`, merged by Snakemake from config.yaml, --configfile and --config
# Outputs: STUDY (the validated study as a workflow), ROOT (its folder), LOGS
# Steps:   a wrong configuration ends here, in one line, before any job is planned

import os
import sys
from pathlib import Path

from mpadam.study.load import ConfigError, parse_study
from mpadam.study.paths import StudyPaths
from mpadam.study.workflow import RUN, TUNING, Workflow, sources

# The rules call `mpadam`: that of the environment that runs Snakemake, activated or not.
os.environ["PATH"] = (
    f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
)

try:
    _config = parse_study(config)
    STUDY = Workflow(_config, StudyPaths(_config.study))
    SOURCE_IDENTITY = STUDY.source_text()
except (ConfigError, ValueError, OSError) as error:
    print(f"mpadam: configuration: {error}", file=sys.stderr)
    sys.exit(2)

ROOT = str(STUDY.paths.root)
LOGS = f"{ROOT}/logs"


wildcard_constraints:
    model="[a-z0-9][a-z0-9-]*",
    budget=r"\d+",
    regime="[a-z0-9][a-z0-9-]*",
    optimizer="[a-z0-9][a-z0-9@_-]*",
    seed=r"\d+",
    trial=r"\d+",
    view="(paper/)?",


localrules:
    all,
    all_paper,
    study,
    spec,
    trial_spec,
    select,
