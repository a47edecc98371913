"""Tokenizing against datasets.map, and what reading batches costs: see tokenizing.py.

    python benchmarks/tokenize.py --help

The standard library has a module of this name, and Python looks into a script's own folder first. Whatever imports it
from a script of this folder gets this file, which passes the standard library's on.
"""

from __future__ import annotations

import sys
import sysconfig
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

if __name__ == "__main__":
    from tokenizing import main

    sys.exit(main())

spec = PathFinder.find_spec("tokenize", [sysconfig.get_path("stdlib")])
assert spec is not None
assert spec.loader is not None
sys.modules["tokenize"] = module = module_from_spec(spec)
spec.loader.exec_module(module)
