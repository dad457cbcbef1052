"""Where a network is trained and run: one device or several, and what fits on it."""

from __future__ import annotations

import atexit
import os

import torch
import torch.distributed
from lightning_fabric import Fabric

from opendg.errors import OpenDGError, require_one


def make_fabric(device: str, devices: int = 1) -> Fabric:
    """Lightning Fabric: auto takes the GPU where there is one. Several devices, or torchrun, train data-parallel."""
    check_device(device)
    kind = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    count = count_devices(devices)
    require_one("--devices", count)
    if kind == "cuda" and count > torch.cuda.device_count():
        raise OpenDGError(f"{count} devices were asked for and {torch.cuda.device_count()} found: ask for fewer.")
    fabric = Fabric(accelerator=kind, devices=count, strategy="ddp" if count > 1 else "auto")
    if count > 1:
        fabric.launch()
        atexit.register(part)
    return fabric


def part() -> None:
    """Leave the group of processes: one that ends as a member may be aborted by the threads of its connections."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def check_device(device: str, here: bool = True) -> None:
    """Refuse a device that there is not: at all, or on this machine where `here` is to be trained."""
    if device not in ("auto", "cpu", "cuda"):
        raise OpenDGError(f"There is no device {device!r}: choose auto, cpu or cuda.")
    if here and device == "cuda" and not torch.cuda.is_available():
        raise OpenDGError("No CUDA device was found: use --device cpu, or check the driver with nvidia-smi.")


def count_devices(asked: int) -> int:
    """How many devices train: as many as torchrun has started processes, else as many as were asked for."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", asked))


def fits(size: int, device: torch.device) -> bool:
    """Whether the images may lie on the device: at most half of what is free."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"  # macOS counts all
        free = os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    return size < free // 2
