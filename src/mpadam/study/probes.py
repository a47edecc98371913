"""Names of the files of a study's looks; without torch."""

from __future__ import annotations

FILE = "probes.jsonl"
TABLE = "probes"
