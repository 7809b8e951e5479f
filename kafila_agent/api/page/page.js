// The page: what is asked of the agent again and again, who is asked for a key, and the two views on a narrow screen.

import { fetchSession, hasKey, useKey } from "/page/api.js";
import { Chat } from "/page/chat.js";
import { hintOf, showSession } from "/page/session.js";

const POLL_MS = 2000;
const byId = (id) => document.getElementById(id);

const chat = new Chat();
let shown = "";

function show(seen) {
  const text = JSON.stringify(seen);
  if (text === shown) return; // what somebody reads or has marked stays as it is
  shown = text;
  showSession(byId("session"), seen);
  const model = seen.session?.model ?? "";
  byId("model").textContent = model;
  document.title = model ? `${model} · Kafila` : "Kafila";
  chat.serve(model, hintOf(seen));
}

async function look() {
  try {
    show(await fetchSession());
  } catch (error) {
    if (error.status === 401) askForKey();
    else show({ failure: error.message });
  }
}

async function keepLooking() {
  for (;;) {
    if (!document.hidden && !byId("ask-key").open) await look();
    await new Promise((resume) => setTimeout(resume, POLL_MS));
  }
}

function askForKey() {
  byId("key-wrong").hidden = !hasKey();
  if (!byId("ask-key").open) byId("ask-key").showModal();
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value.trim());
  byId("key").value = "";
  byId("ask-key").close();
  look();
});
byId("ask-key").addEventListener("cancel", (event) => event.preventDefault());

const views = document.querySelectorAll("button[data-view]");
for (const chosen of views) {
  chosen.addEventListener("click", () => {
    document.body.dataset.view = chosen.dataset.view;
    for (const one of views) one.setAttribute("aria-pressed", String(one === chosen));
  });
}
document.addEventListener("visibilitychange", () => document.hidden || look());
keepLooking();
