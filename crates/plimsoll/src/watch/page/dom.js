// Elements and numbers. Text comes from runs and is never markup: it goes through `textContent` alone, and what a
// browser acts on or hides is written out.
const $ = (id) => document.getElementById(id);

/** Control characters other than line feed and tab, direction marks and invisible letters: those of `plimsoll_base`. */
const HIDDEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** Text in which every hidden character is written as `\u{...}`. */
const visible = (text) => String(text).replace(HIDDEN, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");

/** Replaces the text of an element. */
function say(node, text) {
  node.textContent = visible(text);
}

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "css") for (const [key, to] of Object.entries(value)) node.style.setProperty(key, to);
    else node.setAttribute(name, value === true ? "" : visible(value));
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return node;
}

function fill(node, ...children) {
  const shown = children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);
  node.replaceChildren(...shown.map((child) => child instanceof Node ? child : visible(child)));
}

/** Replaces what `node` shows only if `key` is another than the last time, so that focus and selection stay. */
function fillIf(node, key, make) {
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  fill(node, make());
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function number(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e5 || size < 1e-3) {
    if (size >= 1e5 && size < 1e15) {
      const unit = size >= 1e12 ? [1e12, "T"] : size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : [1e3, "k"];
      return (value / unit[0]).toFixed(size / unit[0] >= 100 ? 0 : 1) + " " + unit[1];
    }
    return value.toExponential(1).replaceAll("-", "\u2212");
  }
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
}

function bytes(value) {
  if (!isNumber(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(value) >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return (at === 0 ? value : value.toFixed(value >= 100 ? 0 : 1)) + "\u00a0" + units[at];
}

function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 1) return Math.round(seconds * 1000) + "\u00a0ms";
  if (seconds < 60) return seconds.toFixed(seconds < 10 ? 1 : 0) + "\u00a0s";
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return minutes + "\u00a0min " + Math.floor(seconds % 60) + "\u00a0s";
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return hours + "\u00a0h " + (minutes % 60) + "\u00a0min";
  return Math.floor(hours / 24) + "\u00a0d " + (hours % 24) + "\u00a0h";
}

const whole = (value) => (isNumber(value) ? value.toLocaleString("en") : "–");
const percent = (share) => (share >= 0.0995 ? Math.round(share * 100) : (share * 100).toFixed(1)) + "\u00a0%";
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function table(caption, header, rows) {
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption),
      el("thead", {}, el("tr", {}, header.map((cell) => el("th", { scope: "col" }, cell)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el(i === 0 ? "th" : "td", i === 0 ? { scope: "row" } : {}, cell)))))));
}

/** A table that is made when somebody wants to see it. */
function folded(words, make) {
  const details = el("details", { class: "folded" }, el("summary", {}, words));
  details.addEventListener("toggle", () => {
    if (details.open) fill(details, details.firstChild, make());
  });
  return details;
}

const tip = {
  show(target, ...lines) {
    const box = $("tip");
    fill(box, lines.filter(Boolean).map((line, i) => el(i === 0 ? "strong" : "span", {}, line)));
    box.hidden = false;
    this.target = target;
    this.place();
  },
  place() {
    const box = $("tip"), target = this.target;
    const at = target.getBoundingClientRect(), own = box.getBoundingClientRect();
    const left = Math.max(8, Math.min(at.left + at.width / 2 - own.width / 2, document.documentElement.clientWidth - own.width - 8));
    const above = at.top - own.height - 8;
    box.style.left = left + "px";
    box.style.top = (above > 64 ? above : at.bottom + 8) + "px";
  },
  hide() { $("tip").hidden = true; },
};
// The browser scrolls to a focused element, which keeps its tip.
addEventListener("scroll", () => (tip.target && tip.target === document.activeElement ? tip.place() : tip.hide()), { passive: true });
