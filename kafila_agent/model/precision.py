"""What a model is computed in and held as: ``bfloat16``, or ``bfloat16/int8`` with its large matrices packed."""

from __future__ import annotations

from dataclasses import dataclass

from kafila_agent.model.errors import ModelError

DTYPES = ("bfloat16", "float16", "float32")
QUANTS = ("none", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Precision:
    """``dtype`` of activations and of what is not packed; ``quant`` of the matrices, or none."""

    dtype: str
    quant: str = "none"

    def __str__(self) -> str:
        return self.dtype if self.quant == "none" else f"{self.dtype}/{self.quant}"


def parse_precision(text: str) -> Precision:
    """``dtype`` or ``dtype/quant``. Raises ModelError for one that is not served."""
    dtype, _, quant = text.partition("/")
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not served; choose one of {', '.join(DTYPES)}")
    if (quant or "none") not in QUANTS:
        raise ModelError(f"quant {quant!r} is not served; choose one of {', '.join(QUANTS)}")
    return Precision(dtype, quant or "none")
