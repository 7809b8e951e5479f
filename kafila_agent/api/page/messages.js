// What has been said, as it is shown.

import { digits, percent, seconds } from "/page/figures.js";
import { copyButton, element } from "/page/nodes.js";
import { showText } from "/page/text.js";

/** Show a message at the end of `talk`. `update()` shows what has come to it since, at the next frame. */
export function showMessage(talk, message) {
  const own = message.role === "user";
  const text = element("div", { class: "text" });
  const thoughts = element("div", { class: "text" });
  const thinking = element("details", { class: "thoughts", hidden: true }, element("summary", {}, "Thoughts"), thoughts);
  const foot = element("p", { class: "foot" });
  const place = element(
    "article",
    { class: own ? "message own" : "message" },
    element("h3", { class: "unseen" }, own ? "You" : "The model"),
    thinking,
    text,
    foot,
  );
  let due = false;

  function draw() {
    due = false;
    const follows = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 80;
    if (own) text.textContent = message.content;
    else showText(text, message.content);
    showText(thoughts, message.thoughts ?? "");
    thinking.hidden = !message.thoughts;
    place.classList.toggle("waits", message.busy === true && !message.content);
    place.setAttribute("aria-busy", String(message.busy === true));
    foot.replaceChildren(...(own || message.busy ? [] : [message.note ?? "", copyButton(() => message.content)]));
    if (follows) talk.scrollTop = talk.scrollHeight;
  }

  function update() {
    if (!due) requestAnimationFrame(draw);
    due = true;
  }

  talk.append(place);
  draw();
  talk.scrollTop = talk.scrollHeight;
  return { place, update };
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
