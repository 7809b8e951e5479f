// One conversation: what has been said, and the answer that is under way. This tab keeps it until it is closed.

import { ApiError, streamChat } from "/page/api.js";
import { emptyTalk, measures, showMessage } from "/page/messages.js";
import { element } from "/page/nodes.js";

const KEPT = "kafila-talk";
const SETTINGS = ["system", "temperature", "max-tokens"];
const byId = (id) => document.getElementById(id);

export class Chat {
  #messages = []; // {role, content} and, of an answer, {thoughts, note, busy}
  #answering = null; // an AbortController
  #model = "";
  #serves = false;

  constructor() {
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask(byId("question").value.trim());
    });
    byId("question").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        byId("ask").requestSubmit();
      }
    });
    byId("question").addEventListener("input", fitQuestion);
    byId("stop").addEventListener("click", () => this.#stop());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.#stop());
    byId("new").addEventListener("click", () => this.#startAnew());
    for (const id of SETTINGS) byId(id).addEventListener("change", () => this.#keep());
    this.#restore();
  }

  /** What the agent can answer with now; if it cannot, `hint` says why. */
  serve(model, hint) {
    this.#model = model;
    this.#serves = !hint;
    byId("hint").textContent = hint;
    this.#refresh();
  }

  async #ask(text) {
    if (!text || !this.#serves || this.#answering) return;
    const talk = byId("talk");
    talk.querySelectorAll(".empty, .failed").forEach((told) => told.remove());
    byId("question").value = "";
    fitQuestion();
    const question = { role: "user", content: text };
    const answer = { role: "assistant", content: "", thoughts: "", note: "", busy: true };
    const body = this.#body(question);
    this.#messages.push(question, answer);
    const shown = [showMessage(talk, question), showMessage(talk, answer)];
    this.#answering = new AbortController();
    this.#refresh();
    try {
      await this.#read(body, answer, shown[1]);
    } catch (error) {
      this.#broken(error, question, answer, shown);
    } finally {
      answer.busy = false;
      shown[1].update();
      this.#answering = null;
      this.#keep();
      this.#refresh();
      byId("question").focus();
    }
  }

  #body(question) {
    const system = byId("system").value.trim();
    const said = [...this.#messages, question].map(({ role, content }) => ({ role, content }));
    const body = { model: this.#model, messages: system ? [{ role: "system", content: system }, ...said] : said };
    if (byId("temperature").value) body.temperature = Number(byId("temperature").value);
    if (byId("max-tokens").value) body.max_tokens = Number(byId("max-tokens").value);
    return body;
  }

  async #read(body, answer, shown) {
    for await (const chunk of streamChat(body, this.#answering.signal)) {
      for (const { delta, finish_reason: reason } of chunk.choices) {
        answer.content += delta.content ?? "";
        answer.thoughts += delta.reasoning_content ?? "";
        if (reason === "length") answer.note = "cut short: no tokens were left";
      }
      if (chunk.kafila) answer.note = [answer.note, ...measures(chunk)].filter(Boolean).join(" · ");
      shown.update();
    }
  }

  #broken(error, question, answer, shown) {
    if (error.name === "AbortError") {
      answer.note = "stopped";
    } else if (!(error instanceof ApiError)) {
      throw error;
    } else if (answer.content) {
      answer.note = `broke off: ${error.message}`;
    } else {
      // What was asked stays out of the conversation, so that the next question is no sequel, and can be sent again.
      this.#messages = this.#messages.filter((one) => one !== question && one !== answer);
      for (const { place } of shown) place.remove();
      byId("talk").append(element("p", { class: "failed", role: "alert" }, error.message));
      byId("question").value ||= question.content;
      fitQuestion();
    }
  }

  #stop() {
    this.#answering?.abort();
  }

  #startAnew() {
    this.#stop();
    this.#messages = [];
    byId("talk").replaceChildren();
    this.#keep();
    this.#refresh();
    byId("question").focus();
  }

  #refresh() {
    const busy = this.#answering !== null;
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    byId("send").disabled = !this.#serves;
    const talk = byId("talk");
    if (!this.#messages.length && !talk.querySelector(".failed")) talk.replaceChildren(emptyTalk(this.#model));
  }

  #keep() {
    const settings = SETTINGS.map((id) => byId(id).value);
    try {
      sessionStorage.setItem(KEPT, JSON.stringify({ messages: this.#messages, settings }));
    } catch (error) {
      if (error.name !== "QuotaExceededError") throw error; // so long a talk is kept no further than here
    }
  }

  #restore() {
    const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
    if (kept) {
      SETTINGS.forEach((id, index) => (byId(id).value = kept.settings[index]));
      this.#messages = kept.messages;
      for (const message of this.#messages) {
        message.busy = false; // the answer that was under way ended with the page
        showMessage(byId("talk"), message);
      }
    }
    this.#refresh();
  }
}

/** As high as what is written, up to what the style allows. */
function fitQuestion() {
  const question = byId("question");
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`;
}
