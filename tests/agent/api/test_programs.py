"""Programs that people use, as processes of their own: ``kafila-ctl chat``, and ``llm`` with its own OpenAI client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import pytest

from tests.agent.api.conftest import MODEL

WAIT_S = 60
CHAT = ("-m", "kafila_agent.ctl.main", "chat", "--base-url")


async def run(*args, stdin=b"", env=None) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *args),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | (env or {}),
    )
    out, err = await asyncio.wait_for(process.communicate(stdin), WAIT_S)
    return process.returncode, out.decode(), err.decode()


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, process, master: int):
        self.process = process
        self._master = master
        self.shown = ""
        os.set_blocking(master, False)

    @classmethod
    async def open(cls, *args) -> Terminal:
        master, slave = os.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *args), stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        return cls(process, master)

    def type(self, line: str) -> None:
        os.write(self._master, line.encode() + b"\n")

    async def until(self, words: str) -> str:
        """What is shown up to and with ``words``; the rest is left for the next call."""
        async with asyncio.timeout(WAIT_S):
            while words not in self.shown:
                try:
                    self.shown += os.read(self._master, 65536).decode()
                except BlockingIOError:
                    await asyncio.sleep(0.01)
        before, _, self.shown = self.shown.partition(words)
        return before + words

    async def close(self) -> int:
        self.type("/quit")
        status = await asyncio.wait_for(self.process.wait(), WAIT_S)
        os.close(self._master)
        return status


async def test_chat_answers_what_is_piped_into_it(make_api):
    api = await make_api("Good morning 👩‍👩‍👧 漢字.")
    status, out, err = await run(*CHAT, api.url, "-v", stdin=b"Say it.")
    assert (status, out) == (0, "Good morning 👩‍👩‍👧 漢字.\n"), err
    assert "tokens/s" in err
    assert "network share" in err
    status, _, err = await run(*CHAT, api.url, stdin="Schön.".encode("latin1"))
    assert (status, "Traceback" in err) == (2, False), err
    assert "not UTF-8 text: invalid start byte at byte 3" in err
    status, _, err = await run(*CHAT, api.url, stdin=b" \n")
    assert (status, "nothing was asked" in err) == (2, True)


async def test_chat_takes_openais_variables(make_api):
    key = "k" * 32
    api = await make_api("yes", server={"api_key": key})
    command = CHAT[:-1]
    status, out, err = await run(
        *command, stdin=b"x", env={"OPENAI_BASE_URL": api.url, "OPENAI_API_KEY": key}
    )
    assert (status, out) == (0, "yes\n"), err
    assert api.url in err
    status, _, err = await run(*command, stdin=b"x", env={"OPENAI_BASE_URL": api.url})
    assert (status, "Incorrect API key" in err) == (1, True)


async def test_chat_says_what_is_wrong_with_where_it_was_sent(make_api):
    status, _, err = await run(*CHAT, "http://127.0.0.1:9/v1", stdin=b"x")
    assert status == 1
    assert "127.0.0.1:9" in err
    assert "Traceback" not in err


async def test_chat_at_a_terminal(make_api, monkeypatch):
    """Ctrl-C stops the answer and not the program; what was said is remembered until /reset."""
    api = await make_api("one two three four five", held=5)
    asked = []
    generate = api.engine.generate
    monkeypatch.setattr(api.engine, "generate", lambda request: asked.append(request) or generate(request))
    terminal = await Terminal.open(*CHAT, api.url)
    await terminal.until("> ")
    terminal.type("First question")
    await terminal.until("one two")
    terminal.process.send_signal(signal.SIGINT)
    await terminal.until("\n> ")
    await api.until(lambda: api.requests == 0)
    api.ring.release()
    terminal.type("Second question")
    assert "one two three four five" in await terminal.until("five")
    await terminal.until("\n> ")
    terminal.process.send_signal(signal.SIGINT)  # at the prompt: the line is dropped, the program stays
    await terminal.until("\n> ")
    terminal.type("/reset")
    await terminal.until("> ")
    terminal.type("Third question")
    await terminal.until("five")
    assert await terminal.close() == 0
    first, second, third = (api.engine.text.decode(request.prompt) for request in asked)
    assert "First question" in first
    assert all(words in second for words in ("First question", "one two", "Second question"))
    assert "question" in third
    assert not any(words in third for words in ("First", "Second", "one two"))


@pytest.fixture
def llm(tmp_path):
    """``await llm(api, args...)``: the ``llm`` program told of an api, with no plugins but its own."""

    async def run_llm(api, *args, stdin=b""):
        (tmp_path / "extra-openai-models.yaml").write_text(
            f"- model_id: ring\n  model_name: {MODEL}\n  api_base: {api.url}\n"
            "  can_stream: true\n  supports_schema: true\n  supports_tools: true\n"
        )
        env = {"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": "", "OPENAI_API_KEY": "unused"}
        return await run("-m", "llm", *args, stdin=stdin, env=env | {"NO_PROXY": "*", "no_proxy": "*"})

    return run_llm


@pytest.mark.parametrize("stream", [(), ("--no-stream",)])
async def test_llm_gets_an_answer(make_api, llm, stream):
    api = await make_api("Good morning 👩‍👩‍👧 漢字.")
    status, out, err = await llm(api, "-m", "ring", "Say it.", "--no-log", *stream)
    assert (status, out.strip()) == (0, "Good morning 👩‍👩‍👧 漢字."), err


async def test_llm_gets_an_answer_of_its_schema(make_api, llm):
    api = await make_api(wide=True)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema |= {"additionalProperties": False}
    status, out, err = await llm(api, "-m", "ring", "x", "--schema", json.dumps(schema), "--no-log")
    assert status == 0, err
    assert set(json.loads(out)) == {"ok"}


async def test_llm_says_what_the_api_says_is_wrong(make_api, llm):
    api = await make_api("yes")
    status, _, err = await llm(api, "-m", "ring", "word " * 500, "--no-log")
    assert status == 1
    assert "maximum context length is 256 tokens" in err
