// The table of several runs: a row each, or a row for each group with its median and range, sorted by a heading.
/** More keys would push the results out of a window. */
const KEYS_SHOWN_MAX = 4;
const COLUMNS = [
  { id: "step", title: "step", of: (b) => b.step, show: (b) => whole(b.step) + (b.steps && b.steps !== b.step ? " of " + whole(b.steps) : "") },
  { id: "reward", title: "reward, last", of: (b) => b.reward },
  { id: "reward-best", title: "reward, best", of: (b) => b.reward_best },
  { id: "loss", title: "loss, last", of: (b) => b.loss, unless: "reward" },
  { id: "loss-least", title: "loss, least", of: (b) => b.loss_least, unless: "reward" },
  { id: "held", title: "held out, last", of: (b) => b.eval_last },
  { id: "held-best", title: "held out, best", of: (b) => b.eval_best },
  { id: "rate", title: "sampled tok/s", of: (b) => b.rollout_rate },
  { id: "seconds", title: "time", of: (b) => b.seconds, format: duration },
  { id: "state", title: "state", of: (b) => STATES[b.state] || b.state, text: true },
];

/** The columns that one of the runs has a value for, after the keys in which the runs differ. */
function tableColumns() {
  const has = (column) => runs.some((run) => column.of(run.brief) !== null && column.of(run.brief) !== undefined);
  const hasReward = runs.some((run) => isNumber(run.brief.reward));
  const keys = differing(), shown = keys.slice(0, KEYS_SHOWN_MAX);
  const titles = shown.map(shortKey);
  const ofKey = (key, i) => ({ id: "key " + key, title: titles.filter((title) => title === titles[i]).length > 1 ? key : titles[i], text: true, of: (b, run) => settingsOf(run).get(key) });
  return { keys, columns: [...shown.map(ofKey), ...COLUMNS.filter((column) => has(column) && !(column.unless && hasReward))] };
}

function cellOf(column, group) {
  const values = group.members.map((run) => column.of(run.brief, run)).filter((value) => value !== null && value !== undefined);
  if (!values.length) return { by: null, shown: "–" };
  const format = column.format || number, least = values.reduce((a, b) => (compare(b, a) < 0 ? b : a)), most = values.reduce((a, b) => (compare(b, a) > 0 ? b : a));
  if (column.text) {
    const several = [...new Set(values)];
    return { by: least, shown: several.length < 4 ? several.sort(compare).join(", ") : several.length + " values" };
  }
  if (group.members.length === 1) return { by: values[0], shown: column.show ? column.show(group.members[0].brief) : format(values[0]) };
  const by = middle(values);
  return { by, shown: least === most ? format(by) : [format(by), el("small", {}, format(least) + " to " + format(most))] };
}

/** Groups in the order of the heading that was chosen; those without a value come last. */
function sorted(list, columns) {
  const up = !view.sort.startsWith("-"), id = view.sort.replace(/^-/, "");
  const column = columns.find((one) => one.id === id);
  const by = (group) => (column ? cellOf(column, group).by : group.label);
  if (!column && id !== "name") return list;
  return list.map((group) => [by(group), group]).sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : (up ? 1 : -1) * compare(a, b))).map(([, group]) => group);
}

function heading(column) {
  const isBy = view.sort.replace(/^-/, "") === column.id, isDown = view.sort.startsWith("-");
  // Numbers are looked at from the greatest on.
  const next = isBy ? (isDown ? column.id : "-" + column.id) : (column.text ? "" : "-") + column.id;
  return el("th", { scope: "col", "aria-sort": isBy ? (isDown ? "descending" : "ascending") : null },
    el("button", { type: "button", id: "sort-" + column.id, onclick: () => { view.sort = next; drawRuns(); keepPlace(); } }, column.title, el("span", { "aria-hidden": "true" }, isBy ? (isDown ? " ↓" : " ↑") : "")));
}

/** The switch of the runs of a row in the curves. */
function showBox(members, label, id, stroke) {
  return el("input", { type: "checkbox", id, "aria-label": "Show " + label + " in the curves", checked: members.some((run) => run.on),
    onchange: (event) => { members.forEach((run) => { run.on = event.target.checked; }); drawRuns(); schedule(); keepPlace(); }, css: { "accent-color": stroke } });
}

function runRow(run, columns, stroke, isMember) {
  return el("tr", { class: [run.index === focus ? "focus" : "", isMember ? "member" : ""].join(" ").trim() },
    el("th", { scope: "row" }, el("div", { class: "who" }, showBox([run], run.brief.name, "on-" + run.index, stroke), el("i", { css: { background: stroke } }),
      el("button", { type: "button", id: "see-" + run.index, "aria-pressed": run.index === focus ? "true" : "false", onclick: () => see(run) }, run.brief.name))),
    columns.map((column) => el("td", { class: column.id === "state" ? "s-" + run.brief.state : null }, cellOf(column, { members: [run] }).shown)));
}

function groupRows(group, columns) {
  const stroke = runColour(group.index);
  if (group.members.length === 1) return [runRow(group.members[0], columns, stroke, false)];
  const isOpen = view.open.has(group.id), id = "group-" + group.index;
  const head = el("tr", { class: "group" },
    el("th", { scope: "row" }, el("div", { class: "who" }, showBox(group.members, group.label, "on-" + id, stroke), el("i", { css: { background: stroke } }),
      el("button", { type: "button", id, "aria-expanded": isOpen ? "true" : "false",
        onclick: () => { if (isOpen) view.open.delete(group.id); else view.open.add(group.id); drawRuns(); keepPlace(); } }, group.label, el("small", {}, group.members.length + " runs")))),
    columns.map((column) => el("td", {}, cellOf(column, group).shown)));
  const each = group.members.map((run) => ({ id: run.brief.name, label: run.brief.name, members: [run] }));
  return [head, ...(isOpen ? sorted(each, columns).map((one) => runRow(one.members[0], columns, stroke, true)) : [])];
}

function drawRuns(anew) {
  const key = JSON.stringify([runs.map((run) => [run.brief.version, run.brief.state, run.on, run.detail && run.detail.detail_version]), focus, view.group, view.sort, [...view.open]]);
  if (!anew && $("runs").dataset.key === key) return;
  $("runs").dataset.key = key;
  const several = runs.length > 1;
  for (const id of ["runs", "to-runs", "over"]) $(id).hidden = !several;
  if (!several) return;
  const active = document.activeElement && document.activeElement.id;
  const { keys, columns } = tableColumns();
  drawGroupBy(keys);
  const hint = [view.group ? "A group has the median, with the range below it." : "", keys.length > KEYS_SHOWN_MAX ? keys.length - KEYS_SHOWN_MAX + " more keys differ." : "",
    leftOut ? "The latest " + whole(runs.length) + " runs; " + whole(leftOut) + " earlier ones are left out." : ""];
  say($("runs-hint"), hint.filter(Boolean).join(" "));
  fill($("run-rows"), el("table", {}, el("caption", {}, "Runs"),
    el("thead", {}, el("tr", {}, heading({ id: "name", title: "run", text: true }), columns.map(heading))),
    el("tbody", {}, sorted(groups(), columns).map((group) => groupRows(group, columns)))));
  if (active && $(active)) $(active).focus();
}

/** The choices of a key; none if the runs differ in nothing. */
function drawGroupBy(keys) {
  const others = keys.filter((key) => key !== SEED);
  const choices = [["", "nothing: each run alone"], ...(keys.includes(SEED) ? [["*", "all keys but the seed"]] : []), ...[...others, ...(keys.includes(SEED) ? [SEED] : [])].map((key) => [key, key])];
  fillIf($("group"), JSON.stringify(choices), () => choices.map(([value, words]) => el("option", { value }, words)));
  $("group").value = keys.includes(view.group) || (view.group === "*" && keys.includes(SEED)) ? view.group : "";
  $("group").closest("label").hidden = keys.length === 0;
}
