"""Ends the build of an image whose torch is not built for its version of CUDA: `check_cuda.py 13.0`."""

import sys

import torch


def main(wanted: str) -> int:
    if torch.version.cuda == wanted:
        return 0
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"
    print(
        f"check_cuda.py: torch {torch.__version__} is built for {built}, not CUDA {wanted}: pip was told of a folder "
        "or index with other wheels (pip config list); build again without it, e.g.  PIP_FIND_LINKS= "
        "PIP_EXTRA_INDEX_URL= make image-h100",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
