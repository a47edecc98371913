#!/bin/bash
# Installs mpadam into a virtual environment of an image: what both definition files share, so that building and testing
# the CPU image tests most of the other.
#
#   install.sh PYTHON PREFIX SOURCE REQUIREMENTS...
#
# PYTHON makes the environment at PREFIX; SOURCE is the source tree; REQUIREMENTS are files of exact pins in it, installed
# one after another (kernels are compiled against a torch that must be there already). Where pip finds packages is its own
# configuration, which reaches an image as APPTAINERENV_PIP_* (containers/build.py).
set -euo pipefail
python=$1 prefix=$2 source=$3
shift 3

"$python" -m venv "$prefix"
pip=("$prefix/bin/python" -m pip --no-input --disable-pip-version-check --no-cache-dir)
"${pip[@]}" install --quiet "setuptools>=77" wheel
for requirements in "$@"; do
  "${pip[@]}" install --quiet --no-build-isolation -r "$source/$requirements"
done
"${pip[@]}" install --quiet --no-deps --no-build-isolation "$source"
"${pip[@]}" check

packages=$("$prefix/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp "$source/containers/image_caches.py" "$packages/"
echo "import image_caches" >"$packages/image_caches.pth"

# Bytecode is made now: a read-only image could not keep it. Matplotlib's list of fonts likewise.
"$prefix/bin/python" -m compileall -qq "$prefix/lib" || true
mkdir -p "$prefix/matplotlib"
MPLCONFIGDIR="$prefix/matplotlib" "$prefix/bin/python" -c "import matplotlib.font_manager"
chmod -R a+rX "$prefix"
