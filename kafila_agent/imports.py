"""Everything a session needs that takes seconds to import, in one import.

It lives as long as the program: a tenth of the time would go into looking for garbage where there is none, and the
collector need never look at it again.
"""

# ruff: noqa: E402, F401

from __future__ import annotations

import gc

gc.disable()

import transformers.modeling_utils  # what the first block of any family would import
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

import kafila_agent.head.engine
import kafila_agent.model.blocks
import kafila_agent.probe.capability
import kafila_agent.service
import kafila_agent.stage.loop

# Whichever is asked for first, a thousand patterns are compiled: a second.
get_checkpoint_conversion_mapping("llama")

gc.freeze()
gc.enable()
