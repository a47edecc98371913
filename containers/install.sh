#!/bin/bash
# Installs mpadam into a virtual environment of an image: what both definition files share, so that building and testing
# the CPU image tests most of the other.
#
#   install.sh PYTHON PREFIX SOURCE REQUIREMENTS [CUDA COMPILED]
#
# PYTHON makes the environment at PREFIX; SOURCE is the source tree; REQUIREMENTS is a file of exact pins in it. COMPILED
# is another, of packages that are compiled against the torch of the first, which has to be built for that version of
# CUDA. Where pip finds packages is its own configuration, which reaches an image as APPTAINERENV_PIP_*
# (containers/build.py).
set -euo pipefail
python=$1 prefix=$2 source=$3 requirements=$4 cuda=${5:-} compiled=${6:-}

"$python" -m venv "$prefix"
export PATH="$prefix/bin:$PATH" # builders look for ninja there
pip=("$prefix/bin/python" -m pip --no-input --disable-pip-version-check --no-cache-dir)
"${pip[@]}" install --quiet "setuptools>=77" wheel
"${pip[@]}" install --quiet --no-build-isolation -r "$source/$requirements"
packages=$("$prefix/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if [ -n "$compiled" ]; then
  "$prefix/bin/python" "$source/containers/check_cuda.py" "$cuda"
  ln -s "$packages/nvidia" "$prefix/nvidia" # torch's CUDA libraries, by a path without the version of Python
  "${pip[@]}" install --quiet --no-build-isolation --no-deps -r "$source/$compiled"
fi
"${pip[@]}" install --quiet --no-index --no-build-isolation "$source[hf,pipeline]" # the pins are all that it asks for
"${pip[@]}" check

cp "$source/containers/image_caches.py" "$packages/"
echo "import image_caches" >"$packages/image_caches.pth"

# Bytecode is made now: a read-only image could not keep it. Matplotlib's list of fonts likewise.
"$prefix/bin/python" -m compileall -qq "$prefix/lib" || true
mkdir -p "$prefix/matplotlib"
MPLCONFIGDIR="$prefix/matplotlib" "$prefix/bin/python" -c "import matplotlib.font_manager"
chmod -R a+rX "$prefix"
