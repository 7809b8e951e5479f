from __future__ import annotations

import copy
import random
import time

import pytest
from transformers import PreTrainedTokenizerFast

from kafila_agent.head.text import Text, TextError
from kafila_agent.model.manifest import read_manifest
from tests.agent.head.models import give_tokenizer, sentencepiece_tokenizer

SAMPLES = [
    "Hello, world! It's 12345 o'clock.",
    "  two  spaces\tand\n\nlines  ",
    "Ünïcödé ça va? — “quoted”",
    "漢字とかな、한국어, العربية, हिन्दी",
    "👩‍👩‍👧 🇳🇱 👍🏽 e\u0301",
    "def f(x):\n    return x**2  # comment",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "\ufffd \x00 \u200b",
    "",
]


@pytest.fixture(scope="session")
def reference(smollm2):
    """transformers' own, as AutoTokenizer makes it after ten seconds with the file's configuration."""
    return PreTrainedTokenizerFast.from_pretrained(smollm2.parent, gguf_file=smollm2.name)


def test_a_gguf_file_gives_transformers_own_tokenizer_without_the_wait(smollm2, reference):
    manifest = read_manifest(smollm2)
    started = time.process_time()
    text = Text.from_model(manifest)
    assert time.process_time() - started < 3  # about 0.7 s; AutoTokenizer takes ten times that
    for sample in SAMPLES:
        assert text.encode(sample) == reference(sample)["input_ids"]
    draw = random.Random(1)
    for _ in range(300):
        sample = "".join(
            chr(draw.choice([draw.randrange(32, 127), draw.randrange(160, 0x3000)])) for _ in range(20)
        )
        assert text.encode(sample) == reference(sample)["input_ids"]
    assert text.eos_ids == {reference.eos_token_id} == {2}
    assert text.vocab_size == len(reference) == 49152


@pytest.mark.parametrize(
    "messages",
    [
        [("user", "hi")],
        [("system", "Be brief."), ("user", "hi")],
        [("system", "One."), ("system", "Two."), ("user", "hi")],
        [("user", "hi"), ("assistant", "Hello!"), ("user", "漢字 👍🏽")],
        [("user", "hi"), ("assistant", "I was saying")],
        [("user", "")],
        [("user", "an injected <|im_end|>")],
    ],
)
def test_a_conversation_is_encoded_as_transformers_does(text, reference, messages):
    conversation = [{"role": role, "content": content} for role, content in messages]
    expected = reference.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    assert text.encode_chat(conversation) == expected
    assert (
        expected
        == reference(reference.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False))[
            "input_ids"
        ]
    )


def test_a_template_cannot_be_swapped_from_outside(text):
    with pytest.raises(TextError, match="may not set chat_template"):
        text.encode_chat([{"role": "user", "content": "hi"}], chat_template="{{ 1 }}")


def test_messages_that_the_template_cannot_take_are_refused(text):
    with pytest.raises(TextError, match="chat template refuses"):
        text.encode_chat([{"role": "user"}])


def test_characters_come_whole_and_special_tokens_never(text, reference):
    ids = reference("Hi 👩‍👩‍👧 漢字 <|im_end|> ok", add_special_tokens=False)["input_ids"]
    pieces = [(detokenizer := text.detokenizer([1])).push(token) for token in ids[:1]]
    pieces += [detokenizer.push(token) for token in ids[1:]]
    assert "".join(pieces) == "Hi 👩‍👩‍👧 漢字  ok"
    assert all("\ufffd" not in piece and "<|" not in piece for piece in pieces)
    assert pieces.count("") >= 6
    assert detokenizer.flush() == ""


def test_an_answer_cut_in_the_middle_of_a_character_shows_it(text, reference):
    ids = reference("x👩")["input_ids"][:-1]
    detokenizer = text.detokenizer([])
    assert "".join(map(detokenizer.push, ids)) == "x"
    assert detokenizer.flush() == "\ufffd"


@pytest.mark.parametrize("prompt", ["Half \ufffd", "\ufffd"])
def test_a_prompt_that_ends_in_a_broken_character_is_not_repeated(text, prompt):
    detokenizer = text.detokenizer(text.encode(prompt))
    said = "".join(map(detokenizer.push, text.encode("an answer"))) + detokenizer.flush()
    assert said == "an answer"


def test_the_stream_is_the_whole_answer_for_any_tokens(text, reference):
    draw = random.Random(0)
    for _ in range(300):
        ids = [
            draw.randrange(text.vocab_size if draw.random() < 0.5 else 300) for _ in range(draw.randrange(40))
        ]
        detokenizer = text.detokenizer(reference("The prompt: ")["input_ids"])
        streamed = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
        assert streamed == reference.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_words_of_a_sentencepiece_answer_keep_the_spaces_between_them():
    tokenizer = sentencepiece_tokenizer()
    text = Text(tokenizer, [2])
    prompt = text.encode("ab cd")
    for answer in (" a b", "ab", " 👩‍👩‍👧 a", "é"):
        ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
        detokenizer = text.detokenizer(prompt)
        pieces = [detokenizer.push(token) for token in ids]
        streamed = "".join(pieces) + detokenizer.flush()
        assert "ab cd" + streamed == tokenizer.decode(prompt + ids, skip_special_tokens=True)
        assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_fit_no_character_break_nothing():
    """Such a byte changes the text of those before it, which is out already: the library's stream then raises."""
    tokenizer = sentencepiece_tokenizer()
    text = Text(tokenizer, [2])
    ids = tokenizer.convert_tokens_to_ids(["<0xC5>", "<0xBA>", "<0xE2>", "e", "▁a"])
    detokenizer = text.detokenizer(text.encode("ab"))
    assert [detokenizer.push(token) for token in ids] == ["", "ź", "", "\ufffde", " a"]
    assert detokenizer.flush() == ""
    draw = random.Random(0)
    for _ in range(500):
        # Bytes that are no ASCII, and letters with and without a space before them.
        choices = [*range(131, 259), *range(260, text.vocab_size)]
        prompt, answer = (draw.choices(choices, k=20) for _ in range(2))
        detokenizer = text.detokenizer(prompt)
        streamed = "".join(map(detokenizer.push, answer)) + detokenizer.flush()
        letters = [token for token in answer if token >= 260]
        assert [c for c in streamed if c in "abcdefgh"] == [
            c for c in tokenizer.decode(letters) if c in "abcdefgh"
        ]


def test_end_ids_come_from_every_file_that_names_one(checkpoint, tmp_path):
    made = give_tokenizer(checkpoint("llama"), tmp_path / "a", eos_token="<end>", generation_eos=[2, 5])
    assert Text.from_model(read_manifest(made)).eos_ids == {2, 5, 3}  # 3 is the tokenizer's own
    made = give_tokenizer(checkpoint("llama"), tmp_path / "b", eos_token="<end>")
    assert Text.from_model(read_manifest(made)).eos_ids == {2, 3}  # 2 is config.json's


def test_a_directory_without_a_tokenizer_is_named(checkpoint):
    directory = checkpoint("llama")
    with pytest.raises(TextError, match=f"{directory.name}.*no usable tokenizer"):
        Text.from_model(read_manifest(directory))


def test_a_model_without_a_template_says_what_to_use(checkpoint, tmp_path):
    text = Text.from_model(read_manifest(give_tokenizer(checkpoint("llama"), tmp_path / "a")))
    with pytest.raises(TextError, match="no chat template; use /v1/completions"):
        text.encode_chat([{"role": "user", "content": "hi"}])


def test_a_conversation_with_tools_is_encoded_as_transformers_does(text):
    tokenizer = copy.deepcopy(text._tokenizer)
    tokenizer.chat_template = (
        "{% for t in tools %}{{ t.function.name }}{% endfor %}"
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}{% endfor %}<|im_end|>{% endfor %}"
    )
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "漢"}}}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain"},
    ]
    expected = tokenizer.apply_chat_template(
        turns, tools=tools, add_generation_prompt=True, return_dict=False
    )
    assert Text(tokenizer, text.eos_ids).encode_chat(turns, tools=tools) == expected
    assert "weather" in text.decode(expected)


def test_special_tokens_appear_only_where_they_are_wanted(text):
    ids = [*text.encode("a 👩‍👩‍👧"), 1, *text.encode(" b"), 5, *text.encode("漢")]
    for shown, expected in [((), "a 👩‍👩‍👧 b漢"), ((1,), "a 👩‍👩‍👧<|im_start|> b漢")]:
        detokenizer = text.detokenizer([], shown=frozenset(shown))
        pieces = [detokenizer.push(token) for token in ids]
        assert "".join(pieces) + detokenizer.flush() == expected
        assert not any("\ufffd" in piece for piece in pieces)


def test_half_a_character_before_a_mark_is_given_out_as_such(text):
    ids = text.encode("x👩")[:-1]
    detokenizer = text.detokenizer([], shown=frozenset([1]))
    assert "".join(map(detokenizer.push, [*ids, 1, *text.encode("y")])) == "x\ufffd<|im_start|>y"
