"""The families Kafila serves: data, one row for each that passes tests/ring/test_exact_splits.py.

Any decoder-only family of transformers could be tried; some give wrong text without an error when split
(a scale applied before the first block, keys and values shared between blocks), so a family is served
only when listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafila_agent.model.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True, slots=True)
class Family:
    """How one family differs from the plain ``embed_tokens / layers / norm / lm_head`` body.

    ``embedding_scale`` names the attribute by which its body multiplies what enters, embedded or not. ``is_standard``
    says that its blocks and its head compute what ``program`` has kernels for, whatever the widths.
    """

    name: str
    embedding_scale: str | None = None
    is_standard: bool = False


FAMILIES = {
    family.name: family
    for family in (
        Family("apertus"),
        Family("arcee"),
        Family("cohere"),
        Family("cohere2"),
        Family("ernie4_5"),
        Family("exaone4"),
        Family("gemma"),
        Family("gemma2"),
        Family("gemma3_text"),
        Family("glm"),
        Family("glm4"),
        Family("gpt_oss"),
        Family("granite", embedding_scale="embedding_multiplier"),
        Family("helium"),
        Family("hunyuan_v1_dense"),
        Family("llama", is_standard=True),
        Family("ministral", is_standard=True),
        Family("mistral", is_standard=True),
        Family("mixtral"),
        Family("nemotron"),
        Family("olmo"),
        Family("olmo2"),
        Family("olmo3"),
        Family("olmoe"),
        Family("phi3"),
        Family("qwen2", is_standard=True),
        Family("qwen2_moe"),
        Family("qwen3", is_standard=True),
        Family("qwen3_moe"),
        Family("seed_oss", is_standard=True),
        Family("smollm3", is_standard=True),
        Family("stablelm"),
        Family("starcoder2"),
    )
}


def require_family(name: str, where: object) -> Family:
    """The row of ``name``. Raises ModelError naming it, and what is served, if it is not on the list."""
    try:
        return FAMILIES[name]
    except KeyError:
        served = ", ".join(sorted(FAMILIES))
        raise ModelError(f"{where}: family {name!r} is not served; choose a model of: {served}") from None


def build_config(config: dict[str, Any]) -> PreTrainedConfig:
    """transformers' own configuration object for a config dictionary; code in the checkpoint is never run."""
    from transformers import CONFIG_MAPPING

    fields = {key: value for key, value in config.items() if key != "auto_map"}
    try:
        return CONFIG_MAPPING[fields["model_type"]].from_dict(fields)
    except Exception as error:
        raise ModelError(f"config.json: {type(error).__name__}: {error}; fetch the model again") from error


def causal_lm_class(name: str) -> type[PreTrainedModel]:
    """transformers' own ``*ForCausalLM`` of a family."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name])


def skeleton(config: PreTrainedConfig) -> PreTrainedModel:
    """The family's whole ``*ForCausalLM`` without memory for its weights.

    Raises ModelError for a configuration that contradicts itself, as with no head to share the keys among.
    """
    import torch

    try:
        with torch.device("meta"):
            return causal_lm_class(config.model_type)(config)
    except Exception as error:
        raise ModelError(
            f"its configuration makes no {config.model_type} ({type(error).__name__}: {error}); fetch the model again"
        ) from error
