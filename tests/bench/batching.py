"""Whether a stage may batch rows that wait: are a batch's rows bit for bit those of single rows, and what it gains.

    python -m tests.bench.batching [--dtype bfloat16] [--threads 1]

One block of SmolLM2's shape: its linear layers, which are nearly all of a step, on 1, 2, 4 and 8 rows.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

SHAPES = {
    "q": (576, 576),
    "k, v": (192, 576),
    "gate, up": (1536, 576),
    "down": (576, 1536),
    "LM head": (49152, 576),
}
ROWS = (2, 4, 8)
REPEATS = 200


def seconds(weight: torch.Tensor, rows: torch.Tensor) -> float:
    taken = []
    for _ in range(REPEATS if weight.shape[0] < 10_000 else REPEATS // 10):
        began = time.perf_counter()
        torch.nn.functional.linear(rows, weight)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{options.dtype}, {options.threads} threads; gain: rows/s of a batch over single rows'")
    with torch.inference_mode():
        for name, shape in SHAPES.items():
            weight = torch.randn(shape).to(getattr(torch, options.dtype))
            rows = torch.randn(max(ROWS), shape[1]).to(weight.dtype)
            single = torch.cat([torch.nn.functional.linear(row[None], weight) for row in rows])
            one_s = seconds(weight, rows[:1])
            told = []
            for count in ROWS:
                batch = torch.nn.functional.linear(rows[:count], weight)
                same = (batch == single[:count]).float().mean().item()
                told.append(
                    f"{count} rows: gain {count * one_s / seconds(weight, rows[:count]):4.2f}, same {same:6.1%}"
                )
            print(f"{name:9} " + "   ".join(told))


if __name__ == "__main__":
    main()
