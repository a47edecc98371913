"""What all processes of a check import, imported once, in the server that they are forked from.

Imports ask whether there is a GPU (Transformers does, where FlashAttention is installed). The runtime's answer would
initialise CUDA in the server, and no process forked from it could use the GPU then; NVML's answer does not.
"""

import os

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

import mpadam.training.loop
import mpadam.training.run
import mpadam.training.session  # noqa: F401
