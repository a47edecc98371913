"""The JSON schema of the configuration, generated from `mpadam.study.config`.

python -m mpadam.study.schema > workflow/schemas/config.schema.json
"""

import json
import sys

from mpadam.study.config import StudyConfig


def schema_text() -> str:
    """The schema as it is committed."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **StudyConfig.model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
