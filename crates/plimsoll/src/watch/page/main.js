// The whole page: runs, what is shown of them, and how it stays current while they run.
const runs = [];
const extras = new Set();
let focus = 0, leftOut = 0, timer = 0, busy = false, again = false;

const STATES = { running: "running", finished: "finished", failed: "ended with an error", stopped: "stopped", gone: "directory is gone", unknown: "state unknown" };
const focused = () => runs[focus];
const chosen = () => runs.filter((run) => run.on && run.series);

function onRuns(state) {
  state.runs.forEach((brief, index) => {
    const isNew = !runs[index];
    const run = runs[index] || (runs[index] = { index, on: true, series: null, shown: null, near: null, detail: null, version: -1 });
    run.brief = brief;
    if (isNew) placeRun(run);
  });
  leftOut = state.left_out;
  drawRuns();
  drawHero(focused());
  drawRanks(focused());
  refresh();
}

/** Fetches what changed, one refresh at a time. */
async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  do {
    again = false;
    for (const run of runs) {
      try {
        if (!run.detail || run.detail.detail_version !== run.brief.detail_version) { run.detail = await source.detail(run.index); run.settings = null; }
        if (run.version !== run.brief.version) await fetchSeries(run);
      } catch { /* The server went away; the stream says so, and comes back with everything. */ }
    }
    if (zoomed) await look();
    schedule();
  } while (again);
  busy = false;
}

async function fetchSeries(run) {
  const version = run.brief.version, old = run.series;
  const now = await source.series(run.index, old && old.epoch, old ? Math.max(0, old.first.length - 1) : 0);
  run.series = merge(old, now) || (await source.series(run.index));
  run.version = version;
  if (!run.near) run.shown = run.series;
}

function schedule() {
  if (!timer) timer = requestAnimationFrame(() => { timer = 0; drawAll(); });
}
// Animation frames stop in a hidden page; it is drawn when it is visible again.

function drawAll() {
  const run = focused();
  if (!run) return;
  const shown = sources();
  for (const spec of CHARTS) draw(spec, $("charts"), shown);
  for (const name of extras) draw({ id: "x-" + name, title: name, lines: [name], extra: () => { extras.delete(name); dropChart("x-" + name); drawMore(); keepPlace(); } }, $("charts"), shown);
  drawRuns();
  drawMore();
  drawMemory(run);
  const alone = run.shown ? [{ label: run.brief.name, colour: runColour(run.index), members: [run] }] : [];
  draw(HOST, $("host"), alone);
  drawShares(run);
  draw(TIMES, $("times"), alone);
  drawSamples(run);
  drawEvents(run);
  $("reset").hidden = !zoomed;
  arrive();
}

function dropChart(id) {
  const card = chartOf.get(id);
  if (card) { card.plot && card.plot.destroy(); card.node.remove(); chartOf.delete(id); }
}

function redraw() {
  for (const id of [...chartOf.keys()]) dropChart(id);
  drawRuns(true);
  drawAll();
}

function drawMore() {
  const known = new Set(CHARTS.flatMap((spec) => linesOf(spec, chosen())).concat([...extras]));
  const names = [...new Set(chosen().flatMap((run) => Object.keys(run.series.metrics)))].filter((name) => !known.has(name)).sort();
  fillIf($("more"), JSON.stringify(names), () => [el("option", { value: "" }, "choose one of " + names.length), ...names.map((name) => el("option", { value: name }, name))]);
}

/** Shows a run in the parts of the page that are of one run. */
function see(run) {
  focus = run.index;
  drawRuns();
  drawHero(run);
  drawRanks(run);
  schedule();
  keepPlace();
}

function drawHero(run) {
  if (!run) return;
  const b = run.brief, share = b.steps ? Math.min(1, b.step / b.steps) : 0;
  document.title = (b.state === "running" && b.steps ? Math.floor(share * 100) + " % " : "") + b.name + " · Plimsoll";
  const reading = b.log_bytes > b.read_bytes + 65536 ? "reading the log, " + Math.floor((100 * b.read_bytes) / b.log_bytes) + " %" : "";
  // One line over the trainer and its workers, as in the memory picture.
  const held = b.peak_bytes;
  const headroom = b.load_line_bytes && held ? b.load_line_bytes - held : null;
  // As the terminal shows them; the chart of throughput has the single steps.
  const ofSteps = b.step > 1 ? "mean of steps 1 to " + whole(b.step) : "step 1";
  const tiles = [
    isNumber(b.reward) ? ["Reward", number(b.reward), "mean of the last step"] : isNumber(b.loss) ? ["Loss", number(b.loss), "last step"] : null,
    isNumber(b.eval_last) ? ["Held out", number(b.eval_last), b.eval_first !== b.eval_last ? "from " + number(b.eval_first) : "before training"] : null,
    isNumber(b.rollout_rate) ? ["Sampling", number(b.rollout_rate), "tokens a second, " + ofSteps] : isNumber(b.frame_rate) ? ["Frames", number(b.frame_rate), "a second, last step"] : null,
    isNumber(b.update_rate) ? ["Training", number(b.update_rate), "tokens a second, " + ofSteps] : null,
    held ? ["Memory", bytes(held), headroom === null ? "highest reading" : headroom >= 0 ? bytes(headroom) + " below the load line" : bytes(-headroom) + " over the load line", headroom < 0 ? "bad" : ""] : null,
    b.state === "running" && isNumber(b.seconds_left) ? ["Left", duration(b.seconds_left), duration(b.seconds) + " so far"] : ["Took", duration(b.seconds), whole(b.step) + " steps"],
  ].filter(Boolean);
  fillIf($("hero"), JSON.stringify([b, reading]), () => [
    el("div", { class: "title" }, el("h1", {}, b.name), el("span", { class: "state s-" + b.state }, STATES[b.state] || b.state),
      b.num_warnings ? el("a", { class: "warned", href: "#events" }, whole(b.num_warnings) + (b.num_warnings === 1 ? " warning" : " warnings")) : null),
    el("p", { class: "what" }, b.what || "no run has begun here yet"),
    el("div", { class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": b.steps || 0, "aria-valuenow": b.step, "aria-label": "Steps" },
      el("div", { css: { width: share * 100 + "%" } })),
    el("p", { class: "steps" }, "step ", el("b", {}, whole(b.step)), b.steps ? " of " + whole(b.steps) : "", reading ? el("span", { role: "status" }, reading) : null),
    el("dl", { class: "tiles" }, tiles.map(([name, value, note, tone]) => el("div", { class: tone || "" }, el("dt", {}, name), el("dd", {}, value, el("small", {}, note))))),
  ]);
}

/** Shows the steps from `low` to `high` in all charts; single ones where the page holds several in one. */
async function zoomTo(low, high) {
  zoomed = low === null ? null : [low, high];
  await look();
  redraw();
  keepPlace();
}

async function look() {
  await Promise.all(runs.map(async (run) => {
    if (!run.series) return;
    run.near = null;
    run.shown = run.series;
    if (!zoomed || run.series.width === 1) return;
    const [from, to] = zoomed.map((at) => (view.x === "share" ? (at * stepsOf(run)) / 100 : at));
    const [low, high] = [Math.max(0, Math.floor(from)), Math.ceil(to)];
    // Reading more points than a chart has pixels would be wasted.
    if (high - low > 4096) return;
    const near = await source.zoom(run.index, low, high).catch(() => null);
    if (near && near.first.length > 1) run.near = run.shown = near;
  }));
}

function setTheme(theme) {
  const root = document.documentElement;
  if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
  $("theme").setAttribute("aria-label", "Colours: " + (theme || "as the system has them"));
  $("theme").title = $("theme").getAttribute("aria-label");
  try { theme ? localStorage.setItem("theme", theme) : localStorage.removeItem("theme"); } catch { /* A file may have no storage. */ }
}

function start() {
  let theme = "";
  try { theme = localStorage.getItem("theme") || ""; } catch { /* As above. */ }
  setTheme(["light", "dark"].includes(theme) ? theme : "");
  $("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme || "";
    setTheme({ "": "light", light: "dark", dark: "" }[now]);
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  $("reset").addEventListener("click", () => zoomTo(null));
  $("more").addEventListener("change", (event) => { if (event.target.value) { extras.add(event.target.value); drawAll(); keepPlace(); } });
  $("group").addEventListener("change", (event) => { view.group = event.target.value; drawRuns(); schedule(); keepPlace(); });
  $("x").addEventListener("change", (event) => { view.x = event.target.value; zoomTo(null); });
  let typing = 0;
  $("words").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { showSamples(focused(), false); keepPlace(); }, 200); });
  for (const id of ["file", "reward"]) $(id).addEventListener("change", () => { showSamples(focused(), false); keepPlace(); });
  $("next").addEventListener("click", () => showSamples(focused(), true));
  new ResizeObserver(() => schedule()).observe($("charts"));
  followPlace();
  const link = $("link");
  if (!source.isLive) { link.textContent = "a copy"; link.className = "link copy"; }
  source.follow(onRuns, (up) => {
    link.textContent = up ? "live" : "no connection";
    link.className = "link " + (up ? "up" : "down");
  });
}

start();
