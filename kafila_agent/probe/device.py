"""Whether torch can compute on the device that was asked for."""

from __future__ import annotations

import torch


class DeviceError(ValueError):
    """No such device on this machine."""


def check_device(name: str) -> None:
    """Put one number on device ``name``. Raises DeviceError saying what there is instead."""
    try:
        torch.ones(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        usable = ["cpu"]
        if torch.cuda.is_available():
            usable += [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        if torch.backends.mps.is_available():
            usable.append("mps")
        reason = str(error).splitlines()[0].rstrip(".")
        raise DeviceError(f"--device {name}: {reason}; this machine has {', '.join(usable)}") from error
