#!/bin/bash
# What `apptainer test IMAGE` runs: every package imports, the commands start, a C++ step compiles, nothing of HOME counts.
#
#   test.sh MODULE...       modules that this image has beyond those of the CPU image
set -euo pipefail
python - "$@" <<'P'
import importlib, pkgutil, sys
import mpadam
names = ["torch", "transformers", "tokenizers", "datasets", "safetensors", "pandas", "seaborn", "sympy", "networkx"]
names += [module.name for module in pkgutil.walk_packages(mpadam.__path__, "mpadam.") if module.name != "mpadam.__main__"]
for name in names + sys.argv[1:]:
    importlib.import_module(name)
assert mpadam.__file__.startswith("/opt/mpadam/"), mpadam.__file__
assert not any(part.startswith(("/root", "/home")) for part in sys.path), sys.path
print(f"{len(names) + len(sys.argv[1:])} modules imported, mpadam {mpadam.__version__}")
P
test "$(command -v mpadam)" = /opt/mpadam/bin/mpadam
mpadam --help >/dev/null
mpadam doctor
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
echo 'int main() { return 0; }' >"$folder/a.cpp"
g++ -o "$folder/a" "$folder/a.cpp"
"$folder/a"
HOME=/nonexistent python -c "import torch, matplotlib.pyplot, transformers"
echo "image: ok"
