"""What this member can do, measured before any weight is loaded. What could not be measured is unknown."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
import torch

from kafila_agent.model.families import build_config, require_family
from kafila_agent.model.precision import Precision, parse_precision
from kafila_agent.model.weights import torch_dtype
from kafila_agent.probe.arithmetic import measure_flops_per_s
from kafila_agent.probe.machine_lock import machine_lock
from kafila_agent.probe.room import measure_room_bytes
from kafila_agent.probe.step_time import StepCost, measure_step_cost

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

log = structlog.get_logger()
T = TypeVar("T")

# Measured with when the model is not known yet: a block of ordinary shape (28 MB in bfloat16 with these widths).
_ORDINARY = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 128,
}
# The probe may use this share of the room for its made-up weights.
_PROBE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Capability:
    """One member's measurements; None is unknown. The first three are b, o and d of the cost model."""

    bandwidth_bytes_per_s: float | None
    overhead_s: float | None
    block_overhead_s: float | None
    flops_per_s: float | None
    memory_bytes: int | None


def measure_capability(
    config: dict[str, Any] | None,
    dtype: str,
    threads: int,
    *,
    device: str = "cpu",
    limit_bytes: int | None = None,
) -> Capability:
    """Measure this machine for the model of ``config`` (None: one of ordinary shape). Blocks for one to two seconds.

    Waits while another probe runs on this machine. What fails is logged and None. Raises ModelError only for
    a dtype or a family that is not served.
    """
    precision = parse_precision(dtype)
    fields = config or _ORDINARY
    require_family(str(fields.get("model_type")), "config.json")
    model = build_config(fields)
    room = _attempt("room", lambda: measure_room_bytes(device, limit_bytes=limit_bytes))
    # A thread of its own: how many threads torch computes with is a property of the calling thread.
    with ThreadPoolExecutor(1, "probe", torch.set_num_threads, (threads,)) as own_thread:
        step, flops = own_thread.submit(_measure, model, precision, threads, device, room).result()
    return Capability(
        bandwidth_bytes_per_s=step.bandwidth_bytes_per_s if step else None,
        overhead_s=step.overhead_s if step else None,
        block_overhead_s=step.block_overhead_s if step else None,
        flops_per_s=flops,
        memory_bytes=room,
    )


def _measure(
    model: PreTrainedConfig, precision: Precision, threads: int, device: str, room: int | None
) -> tuple[StepCost | None, float | None]:
    dtype = torch_dtype(precision.dtype)
    most_bytes = int((room or 0) * _PROBE_SHARE)
    inner_width = getattr(model, "intermediate_size", None) or 4 * model.hidden_size
    try:
        with machine_lock():
            step = _attempt(
                "step cost",
                lambda: measure_step_cost(
                    model, dtype, threads, most_bytes=most_bytes, device=device, quant=precision.quant
                ),
            )
            flops = _attempt(
                "flops",
                lambda: measure_flops_per_s(model.hidden_size, inner_width, dtype, device, precision.quant),
            )
    except TimeoutError as error:
        log.warning("probe failed", what="machine lock", reason=str(error))
        return None, None
    return step, flops


def _attempt(what: str, measure: Callable[[], T]) -> T | None:
    """The measurement, or None and a line in the log: whatever a machine does here, it still can join."""
    try:
        return measure()
    except Exception as error:
        log.warning("probe failed", what=what, reason=f"{type(error).__name__}: {error}")
        return None
