// Curves: one line for each metric of a run or group of runs, a band from minimum to maximum where a point covers several
// steps or runs.
const CHARTS = [
  { id: "reward", title: "Reward", lines: ["reward"], evals: true },
  { id: "return", title: "Episode return", lines: ["episode/return_mean_100", "episode/return", "episode/return_mean"], first: true },
  { id: "length", title: "Response length", unit: "tokens", lines: ["completions/mean_length"] },
  { id: "frames-of", title: "Episode length", unit: "frames", lines: ["episode/length_mean"] },
  { id: "entropy", title: "Entropy", unit: "nats", lines: ["entropy"] },
  { id: "kl", title: "KL to the reference", unit: "nats", lines: ["kl"], nonzero: true },
  { id: "teacher", title: "Reverse KL to the teacher", unit: "nats", lines: ["distill/reverse_kl"] },
  { id: "drift", title: "KL to the policy of the rollout", unit: "nats", lines: ["kl_to_rollout"], nonzero: true },
  { id: "throughput", title: "Throughput", unit: "tokens/s", lines: ["tokens_per_second/rollout", "tokens_per_second/update"], zero: true, smooth: true },
  { id: "carry", title: "Carried responses", unit: "share", lines: ["rollout/stale_share", "rollout/idle_share", "rollout/tail_share"], names: ["older weights", "idle places", "tail"], zero: true },
  { id: "age", title: "Age of trained tokens", unit: "updates", lines: ["rollout/staleness"], zero: true },
  { id: "saved", title: "Saved by carried responses", unit: "s a step", lines: ["rollout/saved_seconds"] },
  { id: "frames", title: "Throughput", unit: "frames/s", lines: ["frames_per_second"], zero: true, smooth: true },
  { id: "loss", title: "Loss", lines: ["loss", "loss/policy"], first: true },
  { id: "value", title: "Value loss", lines: ["loss/value"] },
  { id: "grad", title: "Gradient norm", lines: ["grad_norm"], zero: true },
];
const HOST = { id: "hosttrend", title: "Host memory of the trainer", lines: ["memory/host/step/measured", "host/anon", "host/file", "host/shmem"],
  names: ["measured", "anonymous", "files", "shared"], plan: "memory/host/step/planned", planName: "planned", format: bytes, zero: true };
const PHASES = ["rollout", "reward", "score", "critic", "update"];
const TIMES = { id: "steptime", title: "Time of a step", lines: PHASES.map((phase) => "time/" + phase), names: PHASES, stack: true, format: duration, zero: true };
const DASHES = [[], [5, 4], [2, 3], [8, 3, 2, 3]];
/** Charts of one run are over its steps, whatever the reader compares. */
const byShare = (spec) => view.x === "share" && spec !== HOST && spec !== TIMES;
const LEGEND_MAX = 8;

const chartOf = new Map();
let zoomed = null;

const runColour = (run) => colour("run-" + (run % 8));
const has = (series, name) => Boolean(series && series.metrics[name] && series.metrics[name].mean.some((value) => value !== null));

/** The metrics of `spec` that one of the runs has. Without a reference, for one, its KL is 0 in every step. */
function linesOf(spec, runs) {
  const isShown = (series, name) => has(series, name) && (!spec.nonzero || series.metrics[name].mean.some((value) => value));
  const names = spec.lines.filter((name) => runs.some((run) => isShown(run.shown, name)));
  return spec.first ? names.slice(0, 1) : names;
}

/** uPlot's columns and series for all sources: runs, or groups of them. */
function columns(spec, shown) {
  const made = { tables: [], series: [{}], bands: [], windows: [] };
  const names = linesOf(spec, shown.flatMap((source) => source.members));
  for (const source of shown) {
    if (source.members.length > 1) groupColumns(made, spec, source, names);
    else runColumns(made, spec, source, names, shown.length);
    if (spec.evals) evalColumns(made, spec, source);
  }
  const { tables, series, bands, windows } = made;
  // Stacked areas are drawn from the top down, so that the lower ones lie over the higher ones.
  return { data: tables.length ? (tables.length > 1 ? uPlot.join(tables.filter((t) => t[0].length)) : tables[0]) : [[]], series, bands, windows };
}

const lineName = (spec, names, name) => (spec.names && spec.names[spec.lines.indexOf(name)]) || (names.length > 1 ? name.split("/").pop() : "");
const edge = (name) => ({ name, edge: true, stroke: "transparent", width: 0 });

/** Adds a band between the next two columns. */
function addBand(made, name, stroke) {
  const at = made.series.length;
  made.series.push(edge(name), edge(name));
  made.bands.push({ series: [at, at + 1], fill: stroke + "2b" });
}

function runColumns(made, spec, source, names, count) {
  const { series } = made, run = source.members[0], { last, metrics, width } = run.shown;
  const own = [last.map(placeOf(run, byShare(spec)))];
  const window = spec.smooth ? windowOf(last.length) : 1;
  let below = null;
  names.forEach((name, i) => {
    const cells = metrics[name] || { mean: last.map(() => null) };
    const stroke = spec.stack ? colour("phase-" + PHASES[spec.lines.indexOf(name)]) : spec === HOST ? colour(["run-0", "run-2", "run-1", "run-3"][spec.lines.indexOf(name)]) : source.colour;
    const shown = [source.label, lineName(spec, names, name)];
    if (spec.stack) {
      const sum = cells.mean.map((value, at) => (value || 0) + (below ? below[at] : 0));
      below = sum;
      own.push(sum);
      series.push({ name, shown, stroke, fill: stroke, width: 0, raw: cells.mean, stacked: true });
      return;
    }
    if (width > 1 && cells.min && count <= 4) {
      own.push(cells.max, cells.min);
      addBand(made, name, stroke);
    }
    if (window > 1) {
      made.windows.push(window * width);
      own.push(cells.mean);
      series.push({ ...edge(name), stroke: stroke + "40", width: 1 });
    }
    own.push(window > 1 ? smooth(cells.mean, window) : cells.mean);
    series.push({ name, shown, stroke, width: count > LEGEND_MAX ? 1.25 : 1.75, dash: spec === HOST ? [] : DASHES[i % DASHES.length] });
  });
  if (spec.plan && has(run.shown, spec.plan)) {
    own.push(metrics[spec.plan].mean);
    series.push({ name: spec.plan, shown: [source.label, spec.planName], stroke: colour("soft"), width: 1.5, dash: [6, 4] });
  }
  made.tables.push(own);
}

function groupColumns(made, spec, source, names) {
  names.forEach((name, i) => {
    const curves = source.members.filter((run) => has(run.shown, name)).map((run) => {
      const { last, metrics, width } = run.shown, window = spec.smooth ? windowOf(last.length) : 1;
      if (window > 1) made.windows.push(window * width);
      return [last.map(placeOf(run, byShare(spec))), window > 1 ? smooth(metrics[name].mean, window) : metrics[name].mean];
    });
    if (!curves.length) return;
    const { places, mid, low, high } = across(curves);
    made.tables.push([places, high, low, mid]);
    addBand(made, name, source.colour);
    made.series.push({ name, shown: [source.label, lineName(spec, names, name)], stroke: source.colour, width: 1.75, dash: DASHES[i % DASHES.length], low, high });
  });
}

function evalColumns(made, spec, source) {
  const members = source.members.filter((run) => run.detail);
  const sets = [...new Set(members.flatMap((run) => Object.keys(run.detail.evals)))];
  sets.forEach((set, i) => {
    const curves = members.filter((run) => run.detail.evals[set]).map((run) => [run.detail.evals[set].map((point) => placeOf(run, byShare(spec))(point[0])), run.detail.evals[set].map((point) => point[1])]);
    const { places, mid, low, high } = across(curves);
    if (curves.length > 1) addBand(made, "eval " + set, source.colour);
    made.tables.push(curves.length > 1 ? [places, high, low, mid] : [places, mid]);
    const label = sets.length > 1 ? "held out " + set : "held out";
    made.series.push({ name: "eval " + set, shown: [source.label, label], stroke: source.colour, width: 1, dash: [2, 4], dots: i });
  });
}

function options(spec, made, width, height, onReadout) {
  const soft = colour("soft"), rule = colour("rule"), format = spec.format || number;
  const font = "11px " + getComputedStyle(document.body).fontFamily;
  const line = (series) => series.edge ? { stroke: series.stroke, width: series.width, points: { show: false }, spanGaps: true } : {
    stroke: series.stroke, width: series.width, dash: series.dash, fill: series.fill, spanGaps: true,
    points: series.dots !== undefined ? { show: true, size: 6, fill: colour("surface"), stroke: series.stroke, width: 1.5 } : { show: false },
  };
  return {
    width, height, legend: { show: false }, padding: [10, byShare(spec) ? 20 : 10, 0, 0],
    cursor: { sync: { key: byShare(spec) ? "share" : "steps", setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { size: 7 } },
    scales: { x: { time: false, range: (u, low, high) => zoomOf(spec) || [low === high ? low - 1 : low, low === high ? high + 1 : high] },
      y: { range: (u, low, high) => range(spec, low, high) } },
    series: [{}, ...made.series.slice(1).map(line)], bands: made.bands,
    axes: [
      { stroke: soft, font, size: 26, gap: 4, grid: { show: false }, ticks: { stroke: rule, size: 4 }, values: (u, ticks) => ticks.map((t) => (Number.isInteger(t) ? (byShare(spec) ? t + " %" : t >= 1e4 ? t / 1000 + "k" : String(t)) : "")) },
      { stroke: soft, font, size: (u, values) => 12 + Math.max(24, ...(values || []).map((v) => String(v).length * 6.4)), gap: 4, grid: { stroke: rule, width: 1 }, ticks: { show: false },
        incrs: format === bytes ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].flatMap((n) => [n]).concat([...Array(36).keys()].map((n) => 2 ** (n + 11))) : undefined,
        values: (u, ticks) => ticks.map((t) => format(t)) },
    ],
    hooks: {
      setSelect: [(u) => { if (u.select.width > 4) zoomTo(...[0, u.select.width].map((at) => ofZoom(spec, u.posToVal(u.select.left + at, "x")))); u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false); }],
      setCursor: [(u) => onReadout(u.cursor.idx)],
    },
  };
}

/** The zoom is in places of the curves; charts of one run are over its steps. */
function zoomOf(spec) {
  return zoomed && zoomed.map((place) => (view.x === "share" && !byShare(spec) ? (place * stepsOf(focused())) / 100 : place));
}

const ofZoom = (spec, place) => (view.x === "share" && !byShare(spec) ? (100 * place) / stepsOf(focused()) : place);
const placeInWords = (spec, place) => (byShare(spec) ? number(place) + " % of the run" : "step " + whole(place));

function range(spec, low, high) {
  if (!isNumber(low) || !isNumber(high)) return [0, 1];
  if (spec.zero || (low >= 0 && low < high * 0.4)) low = Math.min(0, low);
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low === 0 ? 0 : low - room, high + room];
}

function draw(spec, host, shown) {
  let card = chartOf.get(spec.id);
  const made = columns(spec, shown);
  const isEmpty = !made.data[0] || made.data[0].length === 0 || made.series.length < 2;
  if (isEmpty) {
    if (card) { card.plot && card.plot.destroy(); card.node.remove(); chartOf.delete(spec.id); }
    return;
  }
  if (!card) {
    card = newCard(spec);
    chartOf.set(spec.id, card);
    host.append(card.node);
  }
  card.made = made;
  const width = Math.max(160, Math.floor(card.area.clientWidth)), height = spec === HOST || spec === TIMES ? 230 : 190;
  const key = JSON.stringify([view.x, made.series.map((s) => [s.name, s.stroke, s.shown]), made.bands.length, made.data.length]);
  if (card.plot && card.key === key) {
    if (card.plot.width !== width) card.plot.setSize({ width, height });
    card.plot.setData(made.data);
  } else {
    if (card.plot) card.plot.destroy();
    card.key = key;
    const made2 = made.series.some((s) => s.stacked) ? stackedOrder(made) : made;
    card.made = made2;
    card.plot = new uPlot(options(spec, made2, width, height, (at) => readout(card, at)), made2.data, card.area);
  }
  if (made.series.some((s) => s.stacked)) { card.made = stackedOrder(made); card.plot.setData(card.made.data); }
  readout(card, null);
  card.area.setAttribute("aria-label", inWords(spec, made));
  const open = card.node.querySelector("details[open]");
  if (open) open.dispatchEvent(new Event("toggle"));
}

function stackedOrder(made) {
  return { ...made, data: [made.data[0], ...made.data.slice(1).reverse()], series: [made.series[0], ...made.series.slice(1).reverse()] };
}

function newCard(spec) {
  const id = "c-" + spec.id;
  const values = el("p", { class: "values" });
  const area = el("div", { class: "area", tabindex: 0, role: "img" });
  const node = el("figure", { class: "card chart", "aria-labelledby": id },
    el("figcaption", {}, el("h3", { id }, spec.title, spec.unit ? el("small", {}, spec.unit) : null), values),
    area, folded("Table", () => chartTable(spec)));
  if (spec.extra) node.querySelector("h3").append(el("button", { class: "remove", type: "button", "aria-label": "Remove " + spec.title, onclick: spec.extra }, "×"));
  const card = { spec, node, values, area, plot: null };
  area.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageDown: -20, PageUp: 20, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined || !card.plot) return;
    event.preventDefault();
    const steps = card.plot.data[0];
    const now = card.at === undefined || card.at === null ? steps.length - 1 : card.at;
    const at = Math.max(0, Math.min(steps.length - 1, now + by));
    card.plot.setCursor({ left: card.plot.valToPos(steps[at], "x"), top: 10 });
  });
  area.addEventListener("blur", () => card.plot && card.plot.setCursor({ left: -10, top: -10 }));
  area.addEventListener("dblclick", () => zoomTo(null));
  return card;
}

/** The values at the cursor, or the last ones. */
function readout(card, at) {
  card.at = at;
  const { data, series, windows } = card.made, format = card.spec.format || number, parts = [];
  series.forEach((line, i) => {
    if (i === 0 || line.edge) return;
    const column = line.raw || data[i];
    let found = at === null || at === undefined ? column.length - 1 : at;
    while (found > 0 && (column[found] === null || column[found] === undefined)) found -= 1;
    parts.push([line, column[found]]);
  });
  if (parts.some(([line]) => line.stacked)) parts.reverse();
  const several = new Set(parts.map(([line]) => line.shown[0])).size > 1;
  const step = at === null || at === undefined ? null : el("span", { class: "at" }, placeInWords(card.spec, data[0][at]));
  fill(card.values, step, parts.slice(0, LEGEND_MAX).map(([line, value]) => el("span", {},
    el("i", { css: { background: line.stroke }, class: line.dots !== undefined ? "dot" : line.dash && line.dash.length ? "dash" : "" }),
    several ? el("span", { class: "who" }, line.shown.filter(Boolean).join(" ")) : line.shown[1] ? el("span", { class: "who" }, line.shown[1]) : null,
    el("b", {}, format(value)))),
    parts.length > LEGEND_MAX ? el("span", { class: "who" }, "and " + (parts.length - LEGEND_MAX) + " more") : null,
    windows.length ? el("span", { class: "who" }, "medians of " + [...new Set([Math.min(...windows), Math.max(...windows)])].map(whole).join(" to ") + " steps") : null);
}

function inWords(spec, made) {
  const format = spec.format || number;
  const parts = made.series.map((line, i) => {
    if (i === 0 || line.edge) return null;
    const values = (line.raw || made.data[i]).filter(isNumber);
    if (!values.length) return null;
    const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
    return line.shown.filter(Boolean).join(" ") + ": first " + format(values[0]) + ", last " + format(values[values.length - 1]) + ", least " + format(low) + ", greatest " + format(high);
  });
  const steps = made.data[0];
  return spec.title + (spec.unit ? " in " + spec.unit : "") + (byShare(spec) ? ", share of the run " + number(steps[0]) + " to " + number(steps[steps.length - 1]) + " %. " : ", steps " + steps[0] + " to " + steps[steps.length - 1] + ". ") + parts.filter(Boolean).join("; ") + ". Arrow keys move along the steps.";
}

function chartTable(spec) {
  const card = chartOf.get(spec.id);
  if (!card) return null;
  const { data, series } = card.made, format = spec.format || number;
  const shown = series.map((line, i) => [line, i]).filter(([line, i]) => i > 0 && !line.edge);
  const every = Math.max(1, Math.ceil(data[0].length / 60));
  const at = data[0].map((_, i) => i).filter((i) => i % every === 0 || i === data[0].length - 1);
  return table(spec.title, [byShare(spec) ? "share" : "step", ...shown.map(([line]) => line.shown.filter(Boolean).join(" "))],
    at.map((i) => [byShare(spec) ? number(data[0][i]) + " %" : whole(data[0][i]), ...shown.map(([line, column]) => { const v = (line.raw || data[column])[i]; return isNumber(v) ? format(v) : ""; })]));
}
