"""Text to tokens and back, as the model's own files say: tokenizer, chat template, end-of-sequence ids."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import llguidance.hf
from llguidance import LLTokenizer
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer, get_gguf_tokenizer
from transformers.integrations.gguf.reader import read_gguf_metadata

from kafila_agent.head.answer_format import AnswerFormat, find_format

if TYPE_CHECKING:
    from kafila_agent.model.manifest import Manifest

_CONTEXT_IDS = 8  # prompt ids a decoder looks back on: enough to tell a word's beginning from its middle
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")  # a GGUF file's, each under tokenizer.ggml.


class TextError(ValueError):
    """A prompt that this model's tokenizer or template cannot take, or a model without them."""


class Text:
    """One model's text side. Safe to use from several threads once made."""

    def __init__(self, tokenizer: Any, eos_ids: Iterable[int]) -> None:
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise TextError(f"tokenizers of kind {type(tokenizer).__name__} are not served")
        self._tokenizer = tokenizer
        self._reserved = set(inspect.signature(tokenizer.apply_chat_template).parameters)
        self.eos_ids = frozenset(eos_ids)
        self.vocab_size = len(tokenizer)
        template = tokenizer.chat_template
        self._template = template if isinstance(template, str) else ""
        self.format: AnswerFormat | None = find_format(
            getattr(tokenizer, "response_template", None), self._template
        )
        added = tokenizer.added_tokens_decoder
        special = {
            each.content: number
            for number, each in added.items()
            if each.special and number not in self.eos_ids
        }
        self.marks: dict[str, int] = {} if self.format is None else self.format.marks(special)
        self.vocabulary: dict[str, int] = tokenizer.get_vocab()

    @classmethod
    def from_model(cls, manifest: Manifest) -> Text:
        """Of a directory of safetensors or of one GGUF file. Raises TextError naming the file."""
        path = manifest.path
        try:
            return _from_gguf(path) if path.suffix == ".gguf" else _from_directory(path, manifest.config)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise TextError(f"{path}: no usable tokenizer ({error}); fetch the model again") from error

    def encode(self, prompt: str) -> list[int]:
        """Ids of a plain prompt, with the model's own beginning-of-sequence token if it has one.

        Raises TextError for half a surrogate pair, which JSON can say and no tokenizer reads.
        """
        try:
            return list(self._tokenizer(prompt)["input_ids"])
        except (TypeError, ValueError) as error:
            raise TextError(f"the tokenizer cannot read it: {error}") from error

    @functools.cached_property
    def lexicon(self) -> LLTokenizer:
        """The tokens as bytes, for grammars and logprobs. When first wanted it takes a second or two to make."""
        return llguidance.hf.from_tokenizer(self._tokenizer, self.vocab_size, sorted(self.eos_ids) or None)

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for, by itself: perhaps part of a character."""
        return self.lexicon.decode_bytes([token]) if token < self.vocab_size else b""

    def heeds(self, variable: str) -> bool:
        """Whether the chat template makes anything of a variable."""
        return variable in self._template

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens included."""
        return self._tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False)

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        **template_arguments: Any,
    ) -> list[int]:
        """Ids of a conversation up to where the assistant is to answer. Raises TextError if it cannot be."""
        if self._tokenizer.chat_template is None:
            raise TextError("this model has no chat template; use /v1/completions")
        if taken := self._reserved & set(template_arguments):
            raise TextError(f"chat_template_kwargs may not set {', '.join(sorted(taken))}")
        try:
            ids: Any = self._tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, return_dict=False, **template_arguments
            )
        except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
            raise TextError(f"the model's chat template refuses these messages: {error}") from error
        return list(ids)

    def detokenizer(self, prompt: Sequence[int], *, shown: frozenset[int] = frozenset()) -> Detokenizer:
        """Turns the answer to ``prompt`` into text, token by token; ``shown``: special tokens that appear in it."""
        return Detokenizer(self._tokenizer, prompt, shown)


class Detokenizer:
    """Gives out whole characters only, and no special token but those ``shown``."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, prompt: Sequence[int], shown: frozenset[int] = frozenset()
    ) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._shown = shown
        self._before = list(prompt[-_CONTEXT_IDS:])  # the last ids whose text is out
        self._held: list[int] = []  # those after them
        self._stream = self._stream_after(self._before)

    def push(self, token: int) -> str:
        """The text that ``token`` completes, often none."""
        if token in self._shown:
            return self.flush() + self._show(token)
        self._held.append(token)
        try:
            piece = self._stream.step(self._backend, token) or ""
        except Exception:
            piece = self._restart()
        if piece:
            self._before = (self._before + self._held)[-_CONTEXT_IDS:]
            self._held = []
        return piece

    def _show(self, token: int) -> str:
        self._before, self._held = [token], []
        self._stream = self._stream_after(self._before)
        return self._backend.id_to_token(token) or ""

    def flush(self) -> str:
        """The rest, when no more tokens come: bytes of an unfinished character appear as U+FFFD."""
        before, both = self._decode(self._before), self._decode(self._before + self._held)
        return both[len(before) :] if both.startswith(before) else self._decode(self._held)

    def _restart(self) -> str:
        """What is held, by itself, and a new stream after it.

        Byte-fallback decoders read a run of byte tokens as a whole: one that fits no character changes the text of
        those before it, which is out already.
        """
        self._stream = self._stream_after(self._held[-1:])
        return self._decode(self._held)

    def _stream_after(self, ids: list[int]) -> DecodeStream:
        """A stream that knows what came before, unless that ends in the middle of a character: it would repeat it."""
        whole = not self._decode(ids).endswith("\ufffd")
        return DecodeStream(ids=list(ids) if whole else [], skip_special_tokens=True)

    def _decode(self, ids: list[int]) -> str:
        return self._backend.decode(ids, skip_special_tokens=True)


def _from_directory(path: Path, config: Mapping[str, Any]) -> Text:
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    generation = path / "generation_config.json"
    declared = json.loads(generation.read_bytes()).get("eos_token_id") if generation.exists() else None
    if declared is None:
        declared = config.get("eos_token_id")
    return Text(tokenizer, _ids(declared) | _ids(tokenizer.eos_token_id))


def _from_gguf(path: Path) -> Text:
    """The tokenizer that ``AutoTokenizer.from_pretrained(gguf_file=...)`` makes, in a tenth of the time.

    For most architectures that reads the configuration through gguf.GGUFReader, which walks the vocabulary
    token by token; the tokenizer does not need a configuration.
    """
    architecture, vocabulary, settings = get_gguf_tokenizer(str(path))
    backend, extra = convert_gguf_tokenizer(architecture, vocabulary)
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=backend, **settings, **extra)
    metadata, _ = read_gguf_metadata(str(path))
    declared = [metadata.get(f"tokenizer.ggml.{key}") for key in _EOS_KEYS]
    return Text(tokenizer, frozenset().union(*map(_ids, declared)))


def _ids(declared: int | list[int] | None) -> frozenset[int]:
    if declared is None:
        return frozenset()
    return frozenset([declared] if isinstance(declared, int) else declared)
