// The memory picture: each phase's planned regions as a hull that fills up, the measurements, and the load line.
const KINDS = { outside: "kernel, workers", process: "process", weights: "weights", states: "gradients, optimizer states", kv: "keys and values", acts: "activations", head: "head" };
const POOL_NAMES = { host: "Host memory", device: "Device memory", pinned: "Pinned memory", shm: "Shared memory", disk: "Disk" };

/** What one pool looks like in each phase: bands by kind, what is idle, what was measured. */
function picture(detail, pool) {
  const mine = detail.plan.regions.filter((r) => r.pool === pool.pool || (pool.pool === "host" && r.pool === "pinned"));
  const isResident = (r) => r.phases.includes("resident");
  const own = (phase) => mine.filter((r) => !isResident(r) && r.phases.includes(phase));
  const sum = (list) => list.reduce((all, r) => all + r.bytes, 0);
  const measuredOf = (phase) => {
    const found = detail.peaks.find((p) => p.phase === phase);
    return !found ? 0 : pool.pool === "host" ? found.all_bytes : pool.pool === "device" ? found.device_bytes : 0;
  };
  let phases = PHASES.filter((phase) => own(phase).length || (phase !== "reward" && phase !== "score" && measuredOf(phase)));
  if (!phases.length) phases = ["update"];
  const overlay = (phase) => sum(own(phase).filter((r) => r.place === "arena"));
  const largest = Math.max(...phases.map(overlay));
  return phases.map((phase) => {
    const list = mine.filter(isResident).concat(own(phase));
    const bands = Object.keys(KINDS).map((kind) => ({ kind, regions: list.filter((r) => r.kind === kind).sort((a, b) => b.bytes - a.bytes) }))
      .map((band) => ({ ...band, bytes: sum(band.regions) })).filter((band) => band.bytes > 0);
    return { phase, bands, planned: sum(list), idle: largest - overlay(phase), measured: measuredOf(phase) };
  });
}

function poolCard(detail, pool) {
  const phases = picture(detail, pool);
  const line = Math.max(pool.peak_bytes || 0, ...phases.map((p) => p.planned));
  const limitNear = pool.limit_bytes && pool.limit_bytes <= line * 1.6;
  // Includes parts without a column, such as evaluations and checkpoints: the page's first lines show the same number.
  const read = pool.pool === "host" ? detail.peaks.map((p) => p.all_bytes) : [];
  const most = Math.max(...phases.map((p) => p.measured), ...read);
  const over = most > line;
  const top = Math.max(line, limitNear ? pool.limit_bytes : 0, most) * 1.1;
  const at = (value) => (100 * value) / top + "%";
  const words = most ? (over ? bytes(most - line) + " over the load line" : bytes(line - most) + " below the load line at the highest") : "not measured";
  const kinds = Object.keys(KINDS).filter((kind) => phases.some((p) => p.bands.some((b) => b.kind === kind)));
  const plot = el("div", { class: "hull", role: "group", "aria-label": POOL_NAMES[pool.pool] + " by phase; the table next to it has the numbers" },
    ticks(top).map((tick) => el("div", { class: "tick", "aria-hidden": "true", css: { bottom: at(tick.bytes) } }, el("span", {}, tick.words))),
    el("div", { class: "columns" }, phases.map((p) => column(p, at))),
    el("div", { class: "load", css: { bottom: at(line) }, "aria-hidden": "true" },
      svgMark(), el("span", {}, el("b", {}, "load line"), " " + bytes(line))),
    limitNear ? el("div", { class: "limit", css: { bottom: at(pool.limit_bytes) }, "aria-hidden": "true" }, el("span", {}, "limit " + bytes(pool.limit_bytes))) : null);
  const rows = phases.map((p) => [p.phase, bytes(p.planned), p.measured ? bytes(p.measured) : "–", p.measured ? bytes(line - p.measured) : "–"]);
  const times = pool.limit_bytes ? pool.limit_bytes / line : 0;
  return el("article", { class: "card pool" + (over ? " over" : "") },
    el("div", { class: "pool-head" }, el("h3", {}, POOL_NAMES[pool.pool]), el("p", { class: "verdict" }, words)),
    el("div", { class: "pool-body" }, plot,
      el("div", { class: "pool-side" },
        el("ul", { class: "legend" }, kinds.map((kind) => el("li", {}, el("i", { class: "k-" + kind }), KINDS[kind])),
          phases.some((p) => p.idle > top * 0.02) ? el("li", {}, el("i", { class: "k-idle" }), "arena, idle in this phase") : null,
          most ? el("li", {}, el("i", { class: "k-measured" }), "measured, highest reading") : null),
        table(POOL_NAMES[pool.pool] + " by phase", ["phase", "planned", "measured", "left to the line"], rows),
        pool.pool === "host" ? sharesOfHost(detail, line, most) : null,
        pool.limit_bytes ? el("p", { class: "hint" }, "The limit is " + bytes(pool.limit_bytes) + " (" + (pool.limit_source || "given") + ")" + (times >= 2 ? ", " + number(Math.round(times)) + " times the plan." : ".")) : null,
        folded("All regions of the plan", () => regionTable(detail, pool)))));
}

/** Whose the memory under the load line is: the line is one, over the trainer and everything that it started. */
function sharesOfHost(detail, line, most) {
  const parts = detail.parts_of_host;
  if (!parts || !parts.trainer || !parts.trainer.planned_bytes) return null;
  const row = (name, part) => [name, bytes(part.planned_bytes), part.measured_bytes ? bytes(part.measured_bytes) : "–"];
  const others = Math.max(0, line - parts.trainer.planned_bytes - parts.workers.planned_bytes);
  return table("Host memory by process", ["whose", "planned", "highest reading"], [
    row("trainer", parts.trainer), row("workers, supervisor", parts.workers),
    others ? ["kernel, reserve", bytes(others), "–"] : null, ["load line, at one time", bytes(line), most ? bytes(most) : "–"],
  ].filter(Boolean));
}

function column(p, at) {
  const label = p.phase + ": planned " + bytes(p.planned) + (p.measured ? ", measured " + bytes(p.measured) : "");
  const bands = p.bands.map((band) => {
    const lines = band.regions.slice(0, 6).map((r) => r.name + "  " + bytes(r.bytes));
    if (band.regions.length > 6) lines.push("and " + (band.regions.length - 6) + " more");
    const node = el("div", { class: "band k-" + band.kind, css: { height: at(band.bytes) }, tabindex: 0, role: "img", "aria-label": p.phase + ", " + KINDS[band.kind] + ": " + bytes(band.bytes) });
    const show = () => tip.show(node, KINDS[band.kind] + ", " + bytes(band.bytes), ...lines);
    for (const name of ["mouseenter", "focus"]) node.addEventListener(name, show);
    for (const name of ["mouseleave", "blur"]) node.addEventListener(name, tip.hide);
    return node;
  });
  return el("div", { class: "column", role: "group", "aria-label": label },
    el("div", { class: "stack" }, bands, p.idle > 0 ? el("div", { class: "band k-idle", css: { height: at(p.idle) } }) : null,
      p.measured ? el("div", { class: "measured", css: { bottom: at(p.measured) } }, el("span", {}, bytes(p.measured))) : null),
    el("div", { class: "name" }, p.phase, el("small", {}, bytes(p.planned))));
}

function ticks(top) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log(top) / Math.log(1024))));
  const unit = 1024 ** power, least = top / 4 / unit, ten = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= least) || 10 * ten;
  return [...Array(6).keys()].map((i) => i * step).filter((n) => n * unit < top)
    .map((n) => ({ bytes: n * unit, words: Number(n.toFixed(2)) + "\u00a0" + units[power] }));
}

function svgMark() {
  const ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg"), add = (name, attributes) => {
    const node = document.createElementNS(ns, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    svg.append(node);
  };
  svg.setAttribute("viewBox", "0 0 40 24");
  svg.setAttribute("class", "mark");
  add("circle", { cx: 20, cy: 12, r: 9, fill: "none", stroke: "currentColor", "stroke-width": 2.5 });
  add("path", { d: "M0 12h40", stroke: "currentColor", "stroke-width": 2.5 });
  return svg;
}

function regionTable(detail, pool) {
  const mine = detail.plan.regions.filter((r) => r.pool === pool.pool).sort((a, b) => b.bytes - a.bytes);
  return table("Regions of the plan", ["region", "kind", "phases", "bytes"], mine.map((r) => [r.name, KINDS[r.kind], r.phases.join(", "), bytes(r.bytes)]));
}

function drawMemory(run) {
  const detail = run && run.detail;
  if (!detail) return;
  const pools = detail.plan ? detail.plan.pools.filter((pool) => pool.pool !== "disk") : [];
  fillIf($("pools"), JSON.stringify([run.index, detail.plan && detail.plan.pools, detail.peaks]), () =>
    pools.length ? pools.map((pool) => poolCard(detail, pool)) : el("p", { class: "card hint" }, "This run has no plan.json."));
  const grows = Object.entries(detail.trend || {}).filter(([, t]) => t && t.grows);
  const seen = Object.keys(detail.trend || {}).length > 0;
  say($("memory-hint"), grows.length ? "Growing with the steps: " + grows.map(([kind, t]) => kind + " by " + bytes(t.slope_bytes_per_step) + " a step").join(", ") + "."
    : seen ? "No kind of host memory grows with the steps." : "");
}

function drawShares(run) {
  const series = run && run.series;
  if (!series) return;
  const totals = PHASES.map((phase) => {
    const cells = series.metrics["time/" + phase];
    return [phase, cells ? cells.mean.reduce((all, mean, i) => all + (mean || 0) * series.count[i], 0) : 0];
  }).filter(([, seconds]) => seconds > 0);
  const all = totals.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!all) return fill($("shares"), el("p", { class: "hint" }, "No step is done."));
  const steps = series.count.reduce((a, b) => a + b, 0);
  fill($("shares"),
    el("div", { class: "share", role: "img", "aria-label": totals.map(([phase, s]) => phase + " " + percent(s / all)).join(", ") },
      totals.map(([phase, s]) => el("div", { class: "p-" + phase, css: { width: (100 * s) / all + "%" } }, s / all > 0.08 ? el("span", {}, phase) : null))),
    el("ul", { class: "legend across" }, totals.map(([phase, s]) => el("li", {}, el("i", { class: "p-" + phase }), phase + " ", el("b", {}, percent(s / all)),
      el("span", { class: "soft" }, duration(s) + ", " + duration(s / steps) + " a step")))));
}
