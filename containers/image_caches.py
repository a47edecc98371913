"""Caches of an image's Python: a folder of this user and job in TMPDIR, which all of its processes share.

Python imports this module when it starts (image_caches.pth; a sitecustomize would lose to Debian's own). HOME may be
read-only, and jobs of one user run side by side on one host. What the host's environment says already stays.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

FOLDERS = {
    "XDG_CACHE_HOME": "",  # also Hugging Face's, if HF_HOME does not say otherwise
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "MPLCONFIGDIR": "matplotlib",
}


def cache_folder() -> Path:
    """The folder, made if need be and nobody else's."""
    job = os.environ.get("SLURM_JOB_ID", "local")
    folder = Path(tempfile.gettempdir(), f"mpadam-{os.getuid()}-{job}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder if folder.stat().st_uid == os.getuid() else Path(tempfile.mkdtemp(prefix="mpadam-"))


def set_caches() -> None:
    folder = cache_folder()
    for name, part in FOLDERS.items():
        os.environ.setdefault(name, str(folder / part))
    fonts = Path(sys.prefix, "matplotlib")  # matplotlib's list of fonts, made with the image
    if fonts.is_dir() and os.environ["MPLCONFIGDIR"] == str(folder / "matplotlib"):
        shutil.copytree(fonts, folder / "matplotlib", dirs_exist_ok=True)


try:
    set_caches()
except OSError as error:
    print(f"mpadam image: no folder for caches ({error}): bind one to /tmp, or set TMPDIR", file=sys.stderr)
