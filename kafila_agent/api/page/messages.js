// What has been said, as it is shown.

import { digits, percent, seconds } from "/page/figures.js";
import { copyButton, element } from "/page/nodes.js";
import { showText } from "/page/text.js";

const FOLLOWED_PX = 80; // nearer to the end than this, whoever reads follows what comes

/** Show a message at the end of `talk`. `update()` shows what has come to an answer since, at the next frame. */
export function showMessage(talk, message) {
  const { place, draw } = message.role === "user" ? question(message) : answer(message);
  let due = false;
  talk.append(place);
  draw();
  talk.scrollTop = talk.scrollHeight;

  function update() {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      const follows = talk.scrollHeight - talk.scrollTop - talk.clientHeight < FOLLOWED_PX;
      draw();
      if (follows) talk.scrollTop = talk.scrollHeight;
    });
  }

  return { place, update };
}

function question({ content }) {
  const said = element("h2", { class: "unseen" }, "You");
  const place = element("article", { class: "message own" }, said, element("div", { class: "text" }, content));
  return { place, draw: () => {} };
}

function answer(message) {
  const text = element("div", { class: "text" });
  const thoughts = element("div", { class: "text" });
  const thinking = element("details", { class: "thoughts" }, element("summary", {}, "Thoughts"), thoughts);
  const foot = element("p", { class: "foot" });
  const said = element("h2", { class: "unseen" }, "The model");
  const place = element("article", { class: "message" }, said, thinking, text, foot);

  function draw() {
    showText(text, message.content);
    showText(thoughts, message.thoughts);
    thinking.hidden = !message.thoughts;
    place.classList.toggle("waits", message.busy && !message.content);
    place.setAttribute("aria-busy", message.busy);
    foot.replaceChildren(...(message.busy ? [] : [message.note, copyButton(() => message.content)]));
  }

  return { place, draw };
}

/** How an answer was made, from its last chunk: a list of figures. */
export function measures({ kafila, usage }) {
  const known = [];
  if (kafila.tokens_per_s != null) known.push(`${digits(kafila.tokens_per_s)} tokens/s`);
  if (kafila.ttft_s != null) known.push(`first token after ${seconds(kafila.ttft_s)}`);
  if (usage) known.push(`${usage.completion_tokens} tokens`);
  if (kafila.network_share != null) known.push(`network share ${percent(kafila.network_share)}`);
  return known;
}

/** What stands where nothing has been said yet. */
export function emptyTalk(model) {
  return element(
    "div",
    { class: "empty" },
    element("h2", {}, "Ask the model something"),
    element("p", {}, model),
    element("p", {}, "Your machines answer together. Only the session's members can read what is said."),
  );
}
