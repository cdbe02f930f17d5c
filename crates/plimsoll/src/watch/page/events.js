// What happened: events with the pages of their slugs, and the error that ended a run.
const WORDS = {
  started: "started", resumed: "taken up again", eval: "evaluation", saved: "checkpoint", warning: "warning",
  finished: "finished", trend: "memory grows", "went back": "went back",
};

function slugButton(slug) {
  return el("button", { type: "button", class: "slug", "aria-haspopup": "dialog", onclick: () => openPage(slug) }, slug);
}

function eventText(e) {
  switch (e.event) {
    case "started": return e.what;
    case "resumed": return (e.notes || []).join("; ");
    case "eval": return [el("b", {}, number(e.score)), (e.num_samples ? " on " + whole(e.num_samples) + " samples" : "") + (e.set ? " of " + e.set : "")];
    case "saved": return el("code", {}, String(e.path || "").split("/").slice(-2).join("/"));
    case "warning": return [slugButton(e.slug), " ", e.message, (e.facts || []).map((fact) => el("div", { class: "soft" }, fact))];
    case "trend": return "a kind of host memory grows with the steps";
    case "went back": return "the log goes on from an earlier step";
    default: return "";
  }
}

function drawEvents(run) {
  const detail = run && run.detail;
  if (!detail) return;
  fillIf($("list"), JSON.stringify([run.index, detail.notable, detail.notable_left_out]), () => {
    const items = detail.notable.slice().reverse().map((e) => el("li", { class: "e-" + String(e.event).replace(/\W/g, "-") },
      el("span", { class: "when" }, isNumber(e.step) ? "step " + whole(e.step) : "", el("small", {}, duration(e.seconds))),
      el("span", { class: "kind" }, WORDS[e.event] || e.event), el("span", { class: "what" }, eventText(e))));
    if (detail.notable_left_out) items.push(el("li", {}, el("span", { class: "soft" }, whole(detail.notable_left_out) + " earlier events are in events.jsonl")));
    return items.length ? items : [el("li", {}, el("span", { class: "soft" }, "Nothing has happened yet."))];
  });
  say($("events-hint"), detail.unreadable_lines ? whole(detail.unreadable_lines) + " lines of the log could not be read and are left out." : "");
  say($("run-file"), detail.run_file || "");
  $("settings").hidden = !detail.run_file;
  say($("where"), detail.dir);
  fillIf($("crash"), JSON.stringify(detail.crash), () => {
    const c = detail.crash;
    if (!c) return [];
    return el("div", { class: "card crash" }, el("p", {}, el("b", {}, "The run ended"), isNumber(c.step) ? " at step " + whole(c.step) + ": " : ": ", slugButton(c.slug || "internal")),
      el("p", {}, c.message), (c.facts || []).map((fact) => el("p", { class: "soft" }, fact)), (c.hints || []).map((hint) => el("p", {}, el("b", {}, "hint: "), hint)));
  });
}

async function openPage(slug) {
  const text = await source.page(slug);
  say($("page-title"), slug);
  fill($("page-body"), text ? markdown(text) : el("p", {}, "There is no page of this name here; `plimsoll explain " + slug + "` may have one."));
  const dialog = $("page");
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

/** The few forms that the pages use: headings, paragraphs, lists, code. */
function markdown(text) {
  const nodes = [], lines = text.split("\n").slice(1);
  const inline = (words) => words.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) =>
    part.startsWith("`") && part.length > 2 ? el("code", {}, part.slice(1, -1)) : part.startsWith("**") && part.length > 4 ? el("b", {}, part.slice(2, -2))
      : part.replace(/\[([^\]]+)\]\([^)]*\)/g, "$1"));
  for (let i = 0; i < lines.length; ) {
    const line = lines[i];
    const block = (test) => { const from = i; while (i < lines.length && test(lines[i])) i += 1; return lines.slice(from, i); };
    if (line.startsWith("```")) {
      i += 1;
      const code = block((l) => !l.startsWith("```"));
      i += 1;
      nodes.push(el("pre", {}, code.join("\n")));
    } else if (line.startsWith("#")) {
      nodes.push(el("h3", {}, line.replace(/^#+\s*/, "")));
      i += 1;
    } else if (/^(\d+\.|[-*])\s/.test(line)) {
      const items = [];
      for (const l of block((l) => /^(\d+\.|[-*])\s/.test(l) || /^\s+\S/.test(l))) {
        if (/^(\d+\.|[-*])\s/.test(l)) items.push(l.replace(/^(\d+\.|[-*])\s+/, ""));
        else items[items.length - 1] += " " + l.trim();
      }
      nodes.push(el(/^\d/.test(line) ? "ol" : "ul", {}, items.map((item) => el("li", {}, inline(item)))));
    } else if (line.startsWith("|")) {
      nodes.push(el("pre", {}, block((l) => l.startsWith("|")).join("\n")));
    } else if (line.trim()) {
      nodes.push(el("p", {}, inline(block((l) => l.trim() && !/^(#|```|\||\d+\.\s|[-*]\s)/.test(l)).join(" "))));
    } else i += 1;
  }
  return nodes;
}

$("page-close").addEventListener("click", () => $("page").close());
$("page").addEventListener("click", (event) => event.target === $("page") && $("page").close());
