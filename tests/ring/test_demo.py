"""The main job through real processes: ``kafila-ctl demo`` on the real SmolLM2, and what must be true of it."""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest

PROMPT = "Explain in a few sentences why the sky is blue."
LONG = "Tell a long story about a river and the people who live along it."
DEMO = [sys.executable, "-m", "kafila_agent.ctl.main", "demo"]
ENVIRONMENT = os.environ | {
    "http_proxy": "http://127.0.0.1:9",
    "all_proxy": "http://127.0.0.1:9",
    "COLUMNS": "160",
}


@pytest.fixture
def tmp(tmp_path):
    """TMPDIR of the demo: what it leaves there is seen. Short, because Unix sockets live below it."""
    return tmp_path


def demo(tmp: Path, *args: str, timeout: int = 110) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*DEMO, *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=ENVIRONMENT | {"TMPDIR": str(tmp)},
        check=False,
    )


def left_behind(tmp: Path) -> tuple[list[str], list[str]]:
    """Files in TMPDIR, and command lines of processes that know of it."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(tmp).encode() in (entry / "environ").read_bytes():
                    processes.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return [str(path) for path in tmp.rglob("*")], processes


def transformers_choices(path: Path, prompt_ids: list[int], answer: list[int], monkeypatch) -> list[int]:
    """What transformers alone, from the weights as it reads them itself, would say in the place of each token."""
    import gguf
    import torch
    from transformers import AutoConfig, LlamaForCausalLM
    from transformers.initialization import no_init_weights
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    # It reads the file and its table of names anew for each question; once is enough.
    for name in ("GGUFReader", "get_tensor_name_map"):
        monkeypatch.setattr(gguf, name, functools.cache(getattr(gguf, name)))
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with no_init_weights():
        model = LlamaForCausalLM(config).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    with torch.inference_mode():
        logits = model(torch.tensor([prompt_ids + answer])).logits[0]
    return logits.argmax(-1)[len(prompt_ids) - 1 : -1].tolist()


@pytest.mark.timeout(480)
def test_three_processes_say_what_transformers_says(tmp, smollm2, monkeypatch):
    result = demo(tmp, "--dtype", "float32", "--max-tokens", "128", "--prompt", LONG, "--json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    token_ids = answer["token_ids"]
    assert len(token_ids) == 128
    assert token_ids == transformers_choices(smollm2, answer["prompt_token_ids"], token_ids, monkeypatch)
    assert answer["text"]
    assert answer["tokens_per_s"] > 0
    assert answer["ttft_s"] > 0
    assert 0 < answer["network_share"] < 1
    ring = answer["plan"]["ring"]
    assert [(edge["from"], edge["to"]) for edge in answer["edges"]] == list(
        zip(ring, ring[1:] + ring[:1], strict=True)
    )
    assert all(edge["path"] == "direct" and edge["rtt_s"] > 0 for edge in answer["edges"])
    assert sorted(block for m in answer["members"] for block in range(*m["blocks"])) == list(range(30))
    assert all(
        member["measured_stage_s"] > 0 and member["predicted_stage_s"] > 0 for member in answer["members"]
    )
    # Held once, all of it: the sum over the members is the model in float32.
    assert sum(member["loaded_bytes"] for member in answer["members"]) == pytest.approx(
        134_515_008 * 4, rel=1e-6
    )
    assert left_behind(tmp) == ([], [])


def test_people_read_the_plan_and_the_ring_and_are_served_until_they_stop_it(tmp):
    with running_demo(tmp, "--members", "2", "--max-tokens", "8", "--relay", "--serve") as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if line.strip().startswith("http://"):
                break
        url = said[-1].strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", url)
        for word in ("tokens/s", "time to first token", "network share", "→"):
            assert word in "".join(said)
        use_with_openai(url)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        told = process.stderr.read()
    assert re.search(r"Session code on desk: \d{6}-\w+-\w+", told)
    assert f"Chat in a browser: {url.removesuffix('v1')}\n" in told
    for word in ("bandwidth", "needs / room", "predicted stage", "laptop is ready", "─relayed"):
        assert word in told
    assert left_behind(tmp) == ([], [])


@contextlib.contextmanager
def running_demo(tmp: Path, *args: str):
    process = subprocess.Popen(
        [*DEMO, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"TMPDIR": str(tmp)},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def use_with_openai(url: str) -> None:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        messages = [{"role": "user", "content": PROMPT}]
        whole = client.chat.completions.create(model=model, messages=messages, max_tokens=12, temperature=0)
        stream = client.chat.completions.create(
            model=model, messages=messages, max_tokens=12, temperature=0, stream=True
        )
        pieces = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
        assert "".join(pieces) == whole.choices[0].message.content != ""
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage.completion_tokens == 12


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_half_way_it_takes_its_processes_with_it(tmp, how):
    with running_demo(tmp, "--members", "2") as process:
        next(line for line in process.stderr if line.startswith("Session code"))
        process.send_signal(how)
        assert process.wait(20) == (130 if how == signal.SIGTERM else -signal.SIGKILL)
        deadline = time.monotonic() + 20
        while left_behind(tmp)[1] and time.monotonic() < deadline:
            signal.sigtimedwait([], 0.1)
    files, processes = left_behind(tmp)
    assert processes == []
    # A demo that is killed outright cannot remove its directory, but writes nowhere else.
    assert files == [] if how == signal.SIGTERM else len(list(tmp.iterdir())) == 1


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["--model", "/no/such/model"], 3, ["/no/such/model", "no such model"]),
        (["--members", "0"], 2, ["--members"]),
        (["--members", "9"], 2, ["--members"]),
        (["--dtype", "int3"], 2, ["int3", "bfloat16"]),
    ],
)
def test_wrong_input_is_named(tmp, args, status, words):
    result = demo(tmp, *args)
    assert result.returncode == status, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert "Traceback" not in result.stderr
    assert "Starting" not in result.stderr
    assert left_behind(tmp) == ([], [])
