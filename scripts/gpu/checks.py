"""The checks of scripts/gpu-check, the most important one first."""

from typing import NamedTuple

NINE_MINUTES = 540  # seconds: the limits below are for this budget
MODULE = "the module starling"  # an item of device.py
DEVICE = ("the device", "torch computes on it")  # items of it, without which nothing else can run
NO_GPU = 3  # exit status of device.py, as of bench-cuda


class Check(NamedTuple):
    name: str
    title: str
    limit: float  # seconds
    script: str


CHECKS = [
    Check("device", "The device, its driver, and torch", 120, "device.py"),  # torch may come from a slow disk
    Check("tests", "The tests that need CUDA", 140, "tests.py"),
    Check("update", "The update beside a copy, and beside torch's fused AdamW", 60, "update.py"),
    Check("bits", "Every scheme and wire on the card, beside the CPU", 150, "bits.py"),
    Check("step", "A step of GPT-2 small: alone, with Starling, with DDP", 90, "step.py"),
    Check("scaler", "GradScaler", 40, "scaler.py"),
    Check("fsdp", "FSDP2 on one card", 50, "fsdp.py"),
    Check("kill", "One of two workers is killed", 40, "kill.py"),
    Check("memory", "Peak memory per parameter", 60, "memory.py"),
    Check("shared", "A step beside a substitute for backward, without Python", 60, "shared.py"),
]
