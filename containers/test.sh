#!/bin/bash
# What `apptainer test IMAGE` runs: every package imports, the commands start, a C++ step compiles, nothing of HOME counts.
#
#   test.sh MODULE...       modules that this image has beyond those of the CPU image (test_modules.py)
set -euo pipefail
python -P /opt/mpadam/test_modules.py "$@"
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
