// What a model writes, as far as it is Markdown that people meet: paragraphs, headings, lists, code, emphasis.

import { copyButton, element } from "/page/nodes.js";

const FENCE = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^#{1,6}\s+(.*)/;
const ITEM = /^(\s*)(?:[-*+]|(\d+)[.)])\s+(.*)/;
const EMPHASIS = /(`[^`\n]+`|\*\*[^*\n]+\*\*|\*[^*\s][^*\n]*\*)/;

/** Show `text` in `place`; blocks that have not changed since the last time stay as they are. */
export function showText(place, text) {
  const blocks = parseBlocks(text);
  blocks.forEach((block, index) => {
    const source = JSON.stringify(block);
    const old = place.children[index];
    if (old?.source === source) return;
    const made = render(block);
    made.source = source;
    if (old) old.replaceWith(made);
    else place.append(made);
  });
  while (place.children.length > blocks.length) place.lastChild.remove();
}

/** `text` in a line, with `code` and **emphasis**: a list of nodes and texts. */
export function inline(text) {
  return text.split(EMPHASIS).filter(Boolean).map((part) => {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) {
      return element("code", {}, part.slice(1, -1));
    }
    if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) {
      return element("strong", {}, part.slice(2, -2));
    }
    if (part.length > 2 && part.startsWith("*") && part.endsWith("*")) return element("em", {}, part.slice(1, -1));
    return part;
  });
}

function parseBlocks(text) {
  const blocks = [];
  let open = null; // the block that the next line may still belong to
  for (const line of text.split("\n")) {
    if (open?.kind === "code") {
      if (line.trim().startsWith(open.fence) && !line.trim().slice(open.fence.length).trim()) open = null;
      else open.lines.push(line);
      continue;
    }
    const [fence, heading, item] = [FENCE.exec(line), HEADING.exec(line), ITEM.exec(line)];
    if (fence) {
      blocks.push((open = { kind: "code", fence: fence[1], language: fence[2], lines: [] }));
    } else if (!line.trim()) {
      open = null;
    } else if (heading) {
      blocks.push({ kind: "heading", lines: [heading[1]] });
      open = null;
    } else if (item) {
      const start = item[2] && Number(item[2]);
      if (open?.kind !== "list" || Boolean(open.start) !== Boolean(start)) {
        blocks.push((open = { kind: "list", start, lines: [] }));
      }
      open.lines.push(item[3]);
    } else if (open?.kind === "list") {
      open.lines.push(`${open.lines.pop()}\n${line.trim()}`);
    } else if (open) {
      open.lines.push(line);
    } else {
      blocks.push((open = { kind: "paragraph", lines: [line] }));
    }
  }
  return blocks;
}

function render({ kind, lines, language, start }) {
  const whole = lines.join("\n");
  if (kind === "code") {
    const head = element("div", { class: "code-head" }, language || "code", copyButton(() => whole));
    return element("div", { class: "code" }, head, element("pre", { tabindex: "0" }, element("code", {}, whole)));
  }
  if (kind === "heading") return element("p", { class: "heading" }, ...inline(whole));
  if (kind === "list") {
    const items = lines.map((line) => element("li", {}, ...inline(line)));
    return start ? element("ol", { start }, ...items) : element("ul", {}, ...items);
  }
  return element("p", {}, ...inline(whole));
}
