"""Peak memory of training per parameter, in bytes: parameters, gradients and state, in fp32. On the
card it is what torch has allocated there. Beside x, g, m and v (16 bytes) there may be a block for
each neighbour and the one that was sent last, in the format of the wire, and the vectors of the
scheme. A scheme that computes on the host has none of this on the card.

With --mock it is the growth of the process's resident memory, which has no bound here."""

import json
import pathlib
import sys

from together import Failed, Workers, each, finish, parsed, prepare, say, verdict

STEPS = 6
# Name, workers, the optimizer's options (None: torch's fused AdamW), the most bytes on the card.
MODES = [
    ("torch's fused AdamW", 1, None, 17),
    ("Starling, alone", 1, {}, 17),
    ("two, cta, fp32", 2, {"wire": "fp32"}, 25),
    ("two, cta, int8", 2, {"wire": "int8"}, 19),
    ("two, atc, fp32", 2, {"scheme": "atc", "wire": "fp32"}, 25),
    ("two, ad-psgd, fp32", 2, {"scheme": "ad-psgd", "wire": "fp32"}, 29),
    ("two, exact-diffusion, fp32", 2, {"scheme": "exact-diffusion", "topology": "ring"}, 30),
    ("two, gradient-tracking, fp32", 2, {"scheme": "gradient-tracking", "topology": "ring"}, 42),
    ("two, choco, fp32", 2, {"scheme": "choco", "topology": "ring"}, 17),
]


def resident(key):
    """Bytes of this process: VmRSS, or VmHWM for its peak."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {key}")


def work(options, job):
    import torch

    import starling

    tensors, side = (2, 500) if options.mock else (124, 1024)
    if options.mock:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        began = resident("VmRSS")
    else:
        torch.cuda.reset_peak_memory_stats()
    parameters = [torch.ones(side, side, device=options.device).requires_grad_() for _ in range(tensors)]
    if job["options"] is None:
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    else:
        optimizer = starling.AdamW(parameters, lr=1e-3, check_gradients=False, **job["options"])
    for p in parameters:
        p.grad = torch.full_like(p, 1e-3)
    for _ in range(STEPS):
        optimizer.step()
    finish(options.device)
    peak = resident("VmHWM") - began if options.mock else torch.cuda.max_memory_allocated()
    if job["options"] is not None:
        optimizer.close()
    print(json.dumps({"bytes_per_parameter": round(peak / (tensors * side * side), 2)}), flush=True)


def main():
    options = parsed()
    prepare()
    for name, count, own, most in MODES[::3] if options.mock else MODES:
        try:
            with Workers(work, count, options, {"options": own}, STARLING_TRANSPORT="mapped") as workers:
                said = each(workers)
        except Failed as error:
            say(name, "failed", str(error))
            continue
        peak = max(line["bytes_per_parameter"] for lines in said.values() for line in lines)
        say(name, verdict(options.mock or peak <= most), "" if options.mock else f"at most {most}", bytes_per_parameter=peak)
    return 0


if __name__ == "__main__":
    sys.exit(main())
