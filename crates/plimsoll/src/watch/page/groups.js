// Runs next to each other: the keys in which they differ, groups of runs by such a key, and the middle of a group's curves.

/** What the reader chose: `group` is a key, "*" for all keys but the seed, or "" for each run on its own; `x` is "steps" or "share". */
const view = { group: "", x: "steps", sort: "", open: new Set() };
const SEED = "seed";
/** Places and names, which differ between any two runs. */
const NOT_COMPARED = /^(run\.dir|track\..*)$/;
/** What the planner chooses follows from other keys, which come first. */
const CHOSEN = /\.(kv_blocks|block_size|sequences_max|micro_batch_tokens|recompute|optimizer_dtype|grad_dtype|threads)$/;

const settingsOf = (run) => (run.settings ||= new Map(run.detail ? run.detail.settings : []));
const shortKey = (key) => key.split(".").pop();

/** The keys of run files whose values are not the same in all runs, in the order of the files, those that the planner chooses last. */
function differing() {
  const known = runs.filter((run) => run.detail), values = new Map();
  for (const run of known) for (const [key, value] of settingsOf(run)) if (!NOT_COMPARED.test(key)) values.set(key, (values.get(key) || []).concat([value]));
  const keys = [...values].filter(([, all]) => all.length < known.length || new Set(all).size > 1).map(([key]) => key);
  return [...keys.filter((key) => !CHOSEN.test(key)), ...keys.filter((key) => CHOSEN.test(key))];
}

const isOrdered = new Intl.Collator("en", { numeric: true });
/** Numbers by size, also where they are written as 1e-5, and texts after them. */
function compare(a, b) {
  const [x, y] = [a, b].map((value) => (isNumber(value) ? value : value === "" || value === null || value === undefined || Number.isNaN(Number(value)) ? null : Number(value)));
  if (x !== null && y !== null) return x - y;
  return x !== null ? -1 : y !== null ? 1 : isOrdered.compare(String(a), String(b));
}

/** All runs in groups: { id, label, index, members }. Each run is one of its own where none is asked for. */
function groups() {
  const keys = differing();
  const by = view.group === "*" ? keys.filter((key) => key !== SEED) : keys.includes(view.group) ? [view.group] : null;
  if (!by) return runs.map((run) => ({ id: "run " + run.brief.name, label: run.brief.name, index: run.index, members: [run] }));
  const found = new Map();
  for (const run of runs) {
    const values = by.map((key) => (settingsOf(run).has(key) ? settingsOf(run).get(key) : "–"));
    const id = JSON.stringify(values);
    if (!found.has(id)) found.set(id, { id, values, label: by.map((key, i) => shortKey(key) + " " + values[i]).join(", ") || "all runs", members: [] });
    found.get(id).members.push(run);
  }
  const list = [...found.values()].sort((a, b) => a.values.map((value, i) => compare(value, b.values[i])).find((order) => order) || 0);
  return list.map((group, index) => ({ ...group, index }));
}

/** What the charts draw a line for: the shown members of each group. */
function sources() {
  return groups().map((group) => ({ ...group, colour: runColour(group.index), members: group.members.filter((run) => run.on && run.shown) }))
    .filter((group) => group.members.length);
}

const stepsOf = (run) => run.brief.steps || run.brief.step || 1;
/** Where a step of a run is drawn. */
const placeOf = (run, byShare) => (byShare ? (step) => (100 * step) / stepsOf(run) : (step) => step);

const middle = (values) => {
  const sorted = values.slice().sort((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};

/** Median, minimum and maximum of several curves [places, values] at every place that one of them has. Between its points a curve is straight. */
function across(curves) {
  const tables = curves.map(([places, values]) => places.map((place, i) => [place, values[i]]).filter(([, value]) => isNumber(value)));
  const places = [...new Set(tables.flatMap((points) => points.map(([place]) => place)))].sort((a, b) => a - b);
  const at = tables.map(() => 0), made = { places, mid: [], low: [], high: [] };
  for (const place of places) {
    const values = [];
    tables.forEach((points, i) => {
      while (at[i] < points.length && points[at[i]][0] < place) at[i] += 1;
      const right = points[at[i]], left = points[at[i] - 1];
      if (right && right[0] === place) values.push(right[1]);
      else if (right && left) values.push(left[1] + ((right[1] - left[1]) * (place - left[0])) / (right[0] - left[0]));
    });
    made.mid.push(middle(values));
    made.low.push(Math.min(...values));
    made.high.push(Math.max(...values));
  }
  return made;
}

/** The median of the `window` values around each, fewer at the ends. */
function smooth(values, window) {
  const half = window >> 1;
  return values.map((value, i) => {
    const near = values.slice(Math.max(0, i - half), i + half + 1).filter(isNumber);
    return isNumber(value) && near.length ? middle(near) : value;
  });
}

/** An odd number of points, a twentieth of all; 1 where there are too few. */
const windowOf = (points) => (points < 5 ? 1 : Math.min(51, Math.max(5, 2 * Math.floor(points / 40) + 1)));
