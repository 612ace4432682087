"""Where a run was made: software and hardware, as the paper's Table 9 lists them."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "mdl_torch",
    "torch",
    "numpy",
    "scipy",
    "scikit-learn",
    "xgboost",
    "xgboost-cpu",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "safetensors",
    "openai",
    "xllamacpp",
)
"""Packages whose versions are recorded, if they are installed."""


def environment() -> dict[str, Any]:
    """Software and hardware of this process, without names of users, hosts or folders.

    Example:
        >>> sorted(environment())
        ['cpu', 'cpus', 'gpus', 'memory_gib', 'packages', 'python', 'system', 'threads']
    """
    import torch

    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": _memory(),
        "gpus": [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())],
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _version(name: str) -> str | None:
    if name == "mdl_torch":
        return str(sys.modules["mdl_torch"].__version__)
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None
