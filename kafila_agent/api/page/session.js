// The session as this agent knows it: who is in it, who holds what, how they reach each other, and what holds it back.

import { digits, percent, seconds, size } from "/page/figures.js";
import { copyButton, element } from "/page/nodes.js";
import { inline } from "/page/text.js";

const NO_SESSION = "This machine is in no session. `kafila-ctl session create` opens one, `kafila-ctl session join` joins one.";

/** Why nothing can be asked now; empty if something can. */
export function hintOf({ failure, session }) {
  if (failure) return failure;
  if (session.state === "serving") return "";
  if (session.state === "none" || session.state === "closed") return "This machine is in no session yet.";
  return session.reason ? `Not now: ${session.reason}` : `The session does not serve yet: it is ${session.state}.`;
}

/** Show everything of a `/session` document, or why there is none. */
export function showSession(place, seen) {
  const title = element("h2", {}, "Session");
  if (seen.failure) {
    place.replaceChildren(title, advice([{ finding: seen.failure, next_step: "" }]));
    return;
  }
  const { session } = seen;
  const parts = [element("div", { class: "title" }, title, element("span", { class: `pill ${session.state}` }, session.state))];
  if (session.state === "none") parts.push(element("p", {}, ...inline(NO_SESSION)));
  else parts.push(element("p", { class: "soft" }, termsOf(session)));
  const causes = session.causes.length || !session.reason ? session.causes : [{ finding: session.reason, next_step: "" }];
  if (causes.length) parts.push(advice(causes));
  if (session.state === "serving") parts.push(figures(seen));
  if (session.members.length) parts.push(element("h3", {}, "Members"), members(seen));
  if (session.lines.length) parts.push(element("ul", { class: "lines" }, ...session.lines.map((line) => element("li", {}, line))));
  if (session.state === "serving") parts.push(otherPrograms());
  const away = seen.attached ? "" : ", which has lost its rendezvous and goes on looking for it";
  parts.push(element("p", { class: "soft last" }, `Kafila ${seen.version} on ${seen.name}${away}`));
  place.replaceChildren(...parts);
}

function termsOf(session) {
  const users = session.concurrency === 1 ? "1 answer at a time" : `${session.concurrency} answers at a time`;
  return `${session.model} in ${session.dtype}, context of ${session.context_tokens} tokens, ${users}, epoch ${session.epoch}`;
}

function advice(causes) {
  const told = causes.map(({ finding, next_step: step }) =>
    element("li", {}, ...inline(finding), step ? element("p", { class: "step" }, "→ ", ...inline(step)) : null));
  return element("ul", { class: "causes", "aria-label": "What holds it back" }, ...told);
}

function figures({ name, session }) {
  const { measured, predicted_tokens_per_s: predicted, plan } = session;
  const rows = [["tokens/s", measured.tokens_per_s == null ? "–" : digits(measured.tokens_per_s),
    predicted == null ? "" : `${digits(predicted)} predicted`]];
  if (measured.ttft_s != null) rows.push(["first token", seconds(measured.ttft_s), "measured"]);
  if (measured.network_share != null) rows.push(["network share", percent(measured.network_share), "of the time"]);
  const list = element("dl", { class: "figures" }, ...rows.map(([what, value, beside]) =>
    element("div", {}, element("dt", {}, what), element("dd", {}, value, beside ? element("small", {}, beside) : null))));
  if (measured.tokens_per_s != null) return list;
  const where = plan?.head === name || !plan ? "Nothing has been measured yet." : `What is measured, the head's agent knows: ${plan.head}'s.`;
  return element("div", {}, list, element("p", { class: "soft" }, where));
}

function members(seen) {
  const { session } = seen;
  const { plan } = session;
  const ring = plan?.ring ?? [];
  const byName = new Map(session.members.map((member) => [member.name, member]));
  const inOrder = [...ring.filter((name) => byName.has(name)), ...[...byName.keys()].filter((name) => !ring.includes(name))];
  const cards = inOrder.map((name) => card(byName.get(name), seen));
  for (let missing = session.expected_members - session.members.length; missing > 0; missing--) {
    cards.push(element("li", { class: "member awaited" }, "awaited"));
  }
  return element("ol", { class: "members" }, ...cards);
}

function card(member, { name: own, session }) {
  const { plan } = session;
  const stage = plan?.stages?.find((one) => one.member === member.name);
  const parts = [element(
    "div",
    { class: "who" },
    element("strong", {}, member.name),
    plan?.head === member.name ? element("span", { class: "badge" }, "head") : null,
    member.name === own ? element("span", { class: "badge plain" }, "this machine") : null,
    element("span", { class: "state" }, member.state),
  )];
  if (stage) parts.push(blocks(stage, plan));
  if (member.total_bytes && member.loaded_bytes < member.total_bytes) parts.push(loading(member));
  if (member.predicted_stage_s != null) {
    const measured = member.measured_stage_s == null ? "" : `, measured ${seconds(member.measured_stage_s)}`;
    parts.push(element("p", {}, `stage: predicted ${seconds(member.predicted_stage_s)}${measured}`));
  }
  if (plan?.unseated_reasons?.[member.name]) parts.push(element("p", {}, `no seat: ${plan.unseated_reasons[member.name]}`));
  if (member.detail) parts.push(element("p", {}, member.detail));
  for (const edge of plan?.edges ?? []) if (edge.from === member.name) parts.push(edgeLine(edge, member));
  return element("li", { class: "member" }, ...parts);
}

function blocks({ blocks: [start, end], member }, plan) {
  const all = Math.max(...plan.stages.map((stage) => stage.blocks[1]));
  const bar = element("div", { class: "blocks", "aria-hidden": true }, element("span"));
  bar.firstChild.style.marginLeft = `${(start / all) * 100}%`;
  bar.firstChild.style.width = `${((end - start) / all) * 100}%`;
  const words = end > start ? `blocks ${start}–${end - 1} of ${all} (${end - start})` : "no blocks";
  return element("div", { title: `${member}: ${words}` }, bar, element("p", {}, words));
}

function loading({ name, loaded_bytes: loaded, total_bytes: total }) {
  const bar = element("progress", { max: total, value: loaded, "aria-label": `${name} loads` });
  return element("div", { class: "loading" }, bar, element("p", {}, `loaded ${size(loaded)} of ${size(total)}`));
}

function edgeLine({ to, path: predicted }, member) {
  const edge = member.edges.find((one) => one.peer === to && one.path);
  const path = edge?.path ?? `${predicted} predicted`;
  const rtt = edge?.rtt_s == null ? "" : `, ${seconds(edge.rtt_s)} there and back`;
  const unlike = edge && edge.path !== predicted ? `, ${predicted} predicted` : "";
  return element("p", { class: `edge ${edge?.path ?? ""}` }, `→ ${to}: ${path}${rtt}${unlike}`);
}

function otherPrograms() {
  const url = `${location.origin}/v1`;
  return element(
    "details",
    {},
    element("summary", {}, "Use it from other programs"),
    element("p", {}, "Any client that speaks OpenAI's API; the base URL is"),
    element("p", { class: "copied" }, element("code", {}, url), copyButton(() => url)),
  );
}
