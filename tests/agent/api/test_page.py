"""The page: what it is served with, who may open it, and in a real browser what it shows and what it lets nobody do."""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace

import pytest
from playwright.async_api import expect
from structlog.testing import capture_logs

from kafila_agent.api.page_routes import FILES
from kafila_agent.head.text import Text
from kafila_agent.view.document import page_document
from kafila_proto import agent_pb2 as pb
from tests.agent.api.conftest import MODEL
from tests.agent.api.test_choices import TEMPLATE
from tests.agent.view.sessions import NAMES, serving_session, session
from tests.browser import PATIENCE_MS, Watched, open_browser, open_page

expect.set_options(timeout=PATIENCE_MS)
KEY = "k" * 32
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@pytest.fixture
async def make_site(make_api):
    """``await make_site(reply, session, ...)``: an Api with its page, whose session says that."""

    async def make(reply="yes", about: pb.SessionStatus | None = None, *, key=None, **options):
        site = SimpleNamespace(about=about or serving_session(), name="desk", attached=True)
        site.about.model = MODEL

        def get_session():
            return page_document(
                pb.Status(name=site.name, version="1", attached=site.attached, session=site.about)
            )

        server = {"get_session": get_session, "api_key": key}
        site.api = await make_api(reply, server=server, **options)
        site.url = site.api.url.removesuffix("v1")
        return site

    return make


async def ask(page, words: str) -> None:
    await page.get_by_label("Message", exact=True).fill(words)
    await page.keyboard.press("Enter")


# What it is served with


async def test_every_file_is_of_its_type_and_keeps_the_page_to_itself(make_site):
    site = await make_site()
    http = site.api.http
    files = [path for path in FILES.iterdir() if path.name != "index.html"]
    for path in ("", *(f"page/{file.name}" for file in files)):
        response = await http.get(site.url + path)
        kind = TYPES[path.rpartition(".")[2] or "html"]
        assert response.status_code == 200
        # Python says application/javascript up to 3.11; browsers take both.
        assert response.headers["content-type"].replace("application/j", "text/j").startswith(kind), path
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        for name, value in (
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-cache"),
        ):
            assert response.headers[name] == value
        again = await http.get(site.url + path, headers={"if-none-match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert "frame-ancestors 'none'" in again.headers["content-security-policy"]
    for path in ("page/", "page/none.js", "page/../guard.py", "page/%2e%2e/guard.py"):
        assert (await http.get(site.url + path)).status_code == 404, path


def test_the_files_lead_nowhere_else_and_make_no_html_of_text():
    for file in FILES.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[\w-]+\.\w|@import|url\(", text), file.name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text
        )
        assert not re.search(r"localStorage|document\.cookie|indexedDB", text), file.name


# Who may open it


@pytest.mark.parametrize("path", ["", "session", "page/page.js"])
async def test_no_page_of_another_origin_gets_any_of_it(make_site, path):
    site = await make_site()
    for headers in (
        {"host": "evil.example"},
        {"host": "evil.example", "origin": "http://evil.example"},
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    ):
        response = await site.api.http.get(site.url + path, headers=headers)
        assert response.status_code == 403, headers
        assert response.json()["error"]["code"] in ("host_not_allowed", "origin_not_allowed")


async def test_a_link_to_the_page_may_be_followed_and_to_nothing_else(make_site):
    site = await make_site()
    visit = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    for path, status in (("", 200), ("session", 403), ("page/page.js", 403), ("v1/models", 403)):
        assert (await site.api.http.get(site.url + path, headers=visit)).status_code == status, path
    assert (await site.api.http.get(site.url, headers=visit | {"host": "evil.example"})).status_code == 403
    assert (await site.api.http.post(site.url, headers=visit)).status_code == 405


async def test_the_session_is_for_who_has_the_key(make_site):
    site = await make_site(key=KEY)
    http = site.api.http
    assert (await http.get(site.url)).status_code == 200
    assert (await http.get(site.url + "page/page.js")).status_code == 200
    for path in ("session", "v1/models"):
        assert (await http.get(site.url + path)).status_code == 401
    known = await http.get(site.url + "session", headers={"authorization": f"Bearer {KEY}"})
    assert known.json()["session"]["state"] == "serving"
    assert known.headers["cache-control"] == "no-store"


ITS_OWN = ("/version", "/favicon.ico")
ATTACK = """async (url) => {
    const chat = {method: "POST", body: JSON.stringify({model: "smollm2", messages: [{role: "user", content: "hi"}]})};
    const got = [];
    for (const [path, options] of [["session", {}], ["page/page.js", {}], ["v1/chat/completions", chat]]) {
        for (const mode of ["cors", "no-cors"]) {
            got.push(await fetch(url + path, {...options, mode}).then((r) => r.text(), () => ""));
        }
    }
    const frame = document.createElement("iframe");
    frame.src = url;
    await new Promise((resume) => { frame.onload = resume; document.body.append(frame); });
    try { got.push(frame.contentDocument?.body.innerText ?? ""); } catch { got.push(""); }
    return got;
}"""


async def test_a_hostile_page_in_the_same_browser_reads_nothing_and_asks_nothing(make_site):
    """On another port of this machine, and under a name that leads to us (DNS rebinding)."""
    site = await make_site()
    port = site.url.rstrip("/").rpartition(":")[2]
    hostile = await make_site("hostile")
    with capture_logs() as logged:
        async with open_browser("--host-resolver-rules=MAP rebound.example 127.0.0.1") as context:
            page = await context.new_page()
            await page.goto(f"{hostile.url}version")  # a page without a policy of its own
            assert not any(await page.evaluate(ATTACK, site.url))
            answer = await page.goto(f"http://rebound.example:{port}/session")
            assert MODEL not in await answer.text()
    refused = [line for line in logged if line["event"] == "request" and line["path"] not in ITS_OWN]
    assert {line["path"] for line in refused} >= {"/", "/session", "/page/page.js", "/v1/chat/completions"}
    assert {line["status"] for line in refused} == {403}
    assert not site.api.ring.launched


# What it shows


async def test_an_answer_streams_in_is_stopped_and_is_part_of_what_is_asked_next(make_site, monkeypatch):
    site = await make_site("one two three four five", held=5)
    asked = []
    generate = site.api.engine.generate
    monkeypatch.setattr(
        site.api.engine, "generate", lambda request: asked.append(request) or generate(request)
    )
    async with open_page(site.url) as watched:
        page = watched.page
        answers = page.locator(".message:not(.own)")
        await expect(page.get_by_role("button", name="Send")).to_be_enabled()
        await page.get_by_text("Settings").click()
        await page.get_by_label("System prompt").fill("Be brief.")
        await ask(page, "First question")
        await expect(answers.last).to_contain_text("one two")
        assert await answers.last.get_attribute("aria-busy") == "true"
        await page.get_by_role("button", name="Stop").click()
        await expect(answers.last).to_contain_text("stopped")
        await site.api.until(lambda: site.api.requests == 0)
        site.api.ring.release()
        await ask(page, "Second question")
        await expect(answers.last).to_contain_text("one two three four five")
        for words in ("tokens/s", "first token after", " tokens · ", "network share"):
            await expect(answers.last).to_contain_text(words)
        await page.reload()
        await expect(page.locator(".message")).to_have_count(4)
        await page.get_by_role("button", name="New chat").click()
        await expect(page.locator(".message")).to_have_count(0)
        site.api.ring.held = len(site.api.ring.launched) + 4
        await ask(page, "Third question")
        await expect(answers.last).to_contain_text("one")
        site.api.engine.fail("laptop is away")
        await expect(answers.last).to_contain_text("broke off: laptop is away")
        await expect(page.get_by_role("button", name="Send")).to_be_visible()
        assert_quiet(watched, site)
    first, second, third = (site.api.engine.text.decode(request.prompt) for request in asked)
    assert all(words in first for words in ("Be brief.", "First question"))
    assert all(words in second for words in ("Be brief.", "First question", "one two", "Second question"))
    assert "Third question" in third
    assert not any(words in third for words in ("First", "Second", "one two"))


HOSTILE = """<script>document.title = "hit"</script><img src=x onerror="document.title='hit'">

A [link](javascript:alert(1)) and **bold <b>words</b>**:

1. one
2. two

```html
<iframe src="https://evil.example/"></iframe>
```"""


async def test_what_a_model_writes_is_text_whatever_it_writes(make_site, text):
    tokenizer = copy.deepcopy(text._tokenizer)
    tokenizer.chat_template = TEMPLATE  # knows thoughts
    site = await make_site(
        f"<think><img src=y onerror=\"document.title='hit'\"></think>{HOSTILE}",
        text=Text(tokenizer, text.eos_ids),
        context_tokens=512,
    )
    async with open_page(site.url) as watched:
        page = watched.page
        await ask(page, "<b>Bold?</b>")
        answer = page.locator(".message:not(.own)").last
        await expect(answer).to_contain_text("tokens/s")
        await expect(page.locator(".own .text").last).to_have_text("<b>Bold?</b>")
        shown = answer.locator(".text").last
        await expect(shown.locator("p").first).to_have_text(HOSTILE.split("\n")[0])
        await expect(shown.locator("strong")).to_have_text("bold <b>words</b>")
        await expect(shown.locator("li")).to_have_text(["one", "two"])
        await expect(shown.locator("pre")).to_have_text('<iframe src="https://evil.example/"></iframe>')
        await expect(answer.locator(".thoughts .text")).not_to_be_visible()
        await answer.get_by_text("Thoughts").click()
        await expect(answer.locator(".thoughts .text")).to_contain_text("<img src=y onerror=")
        assert await page.locator("#talk").locator("img, script, iframe, a, b").count() == 0
        assert "hit" not in await page.title()
        assert_quiet(watched, site)


async def test_it_says_how_the_session_stands_and_asks_for_the_key(make_site):
    loading = session("LOADING", dtype="bfloat16", concurrency=1)
    for place, name in enumerate(NAMES):
        loading.members.add(name=name, state="LOADING", loaded_bytes=place * 10**8, total_bytes=2 * 10**8)
    site = await make_site("one two", loading, key=KEY)
    async with open_page(site.url) as watched:
        page = watched.page

        async def come_to(about: pb.SessionStatus) -> None:
            site.about = about
            await page.clock.fast_forward(3000)  # the page has looked again

        await page.clock.install()
        for key, verdict in (("wrong", "not the key"), (KEY, "")):
            await page.get_by_label("Key", exact=True).fill(key)
            await page.keyboard.press("Enter")
            if verdict:
                await expect(page.get_by_role("alert")).to_contain_text(verdict)
        told = page.get_by_role("complementary", name="Session")
        await expect(told).to_contain_text("loading")
        assert (
            await page.get_by_role("progressbar", name="laptop loads").get_attribute("value") == "100000000"
        )
        await expect(told).to_contain_text("desk has read 0% of its blocks")
        await expect(page.get_by_role("button", name="Send")).to_be_disabled()
        site.attached = False
        await come_to(session("HELD", reason="waiting for tower"))
        await expect(told).to_contain_text("the session waits: waiting for tower")
        await expect(told).to_contain_text("start the agent there")
        await expect(told).to_contain_text("lost its rendezvous")
        await expect(page.locator("#hint")).to_contain_text("waiting for tower")
        await come_to(pb.SessionStatus())
        await expect(told).to_contain_text("This machine is in no session")
        other = serving_session()
        other.model = "another"  # which this server refuses, in its own words
        await come_to(other)
        await expect(page.locator("#hint")).to_be_empty()
        await ask(page, "Are you there?")
        await expect(page.get_by_role("alert").last).to_contain_text("This session serves 'smollm2'")
        await expect(page.get_by_label("Message", exact=True)).to_have_value("Are you there?")
        watched.complaints = [said for said in watched.complaints if "status of 40" not in said]
        assert_quiet(watched, site)


def assert_quiet(watched: Watched, site: SimpleNamespace) -> None:
    """The page complained of nothing, and asked nobody but its own agent."""
    assert watched.complaints == []
    assert watched.origins == {site.url.rstrip("/")}
