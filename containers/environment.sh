# Environment of both images: sourced at each start, by any shell.
# Nothing of the user's Python comes in: no user site, no PYTHONPATH of the host (--env PYTHONPATH=... still does).
export PATH=/opt/mpadam/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PYTHONNOUSERSITE=1
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV
export LC_ALL=C.UTF-8
# Caches: a folder of this user and job, since jobs of one user run side by side on one host, and HOME may be read-only.
mpadam_cache="${TMPDIR:-/tmp}/mpadam-$(id -u)-${SLURM_JOB_ID:-local}"
mkdir -p -m 700 "$mpadam_cache" 2>/dev/null || true
if [ ! -O "$mpadam_cache" ] || [ ! -w "$mpadam_cache" ]; then # somebody else's, or nothing can be written there
  mpadam_cache=$(mktemp -d 2>/dev/null) || echo "mpadam image: bind a writable folder to /tmp, or set TMPDIR" >&2
fi
export XDG_CACHE_HOME="$mpadam_cache" TORCHINDUCTOR_CACHE_DIR="$mpadam_cache/inductor" TRITON_CACHE_DIR="$mpadam_cache/triton"
export CUDA_CACHE_PATH="$mpadam_cache/cuda" HF_HOME="${HF_HOME:-$mpadam_cache/huggingface}"
export MPLCONFIGDIR="$mpadam_cache/matplotlib"
if [ ! -e "$MPLCONFIGDIR" ] && [ -d /opt/mpadam/matplotlib ]; then
  cp -r /opt/mpadam/matplotlib "$MPLCONFIGDIR" 2>/dev/null || true
fi
unset mpadam_cache
