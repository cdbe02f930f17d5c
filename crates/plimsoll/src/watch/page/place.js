// What the reader chose is kept in the address after `#`, so that a link opens the page at the same place:
// `#curves?group=train.learning_rate&x=share`. Names and keys that are not there any more are passed over.
const SECTIONS = ["runs", "ranks", "curves", "memory", "time", "samples", "events"];
const place = { section: "", isWanted: false, settled: 0, wanted: new URLSearchParams() };

/** Writes the address; the history of the browser keeps one entry. */
function keepPlace() {
  const at = new URLSearchParams();
  if (focused() && focus !== 0) at.set("run", focused().brief.name);
  if (view.group) at.set("group", view.group);
  if (view.x !== "steps") at.set("x", view.x);
  if (view.sort) at.set("sort", view.sort);
  if (zoomed) at.set("zoom", zoomed.map((number) => Number(number.toPrecision(6))).join(":"));
  for (const run of runs) if (!run.on) at.append("off", run.brief.name);
  for (const id of view.open) at.append("open", id);
  for (const name of extras) at.append("metric", name);
  for (const id of ["words", "file", "reward"]) if ($(id).value) at.set(id, $(id).value);
  const query = at.toString();
  try { history.replaceState(null, "", "#" + place.section + (query ? "?" + query : "")); } catch { /* A file may have no history. */ }
}

/** Reads the address. What names runs is applied as they come. */
function takePlace() {
  const [section, query] = location.hash.slice(1).split("?", 2);
  const at = new URLSearchParams(query || "");
  place.section = SECTIONS.includes(section) ? section : "";
  place.isWanted = Boolean(place.section);
  place.wanted = at;
  view.group = at.get("group") || "";
  view.x = at.get("x") === "share" ? "share" : "steps";
  view.sort = at.get("sort") || "";
  view.open = new Set(at.getAll("open"));
  const zoom = (at.get("zoom") || "").split(":").map(Number);
  zoomed = zoom.length === 2 && zoom.every(isNumber) && zoom[0] < zoom[1] ? zoom : null;
  extras.clear();
  for (const name of at.getAll("metric").slice(0, 32)) extras.add(name);
  $("x").value = view.x;
  for (const id of ["words", "reward"]) $(id).value = at.get(id) || "";
  for (const run of runs) placeRun(run);
}

/** Applies to a run what the address says of it. */
function placeRun(run) {
  run.on = !place.wanted.getAll("off").includes(run.brief.name);
  if (place.wanted.has("run") ? place.wanted.get("run") === run.brief.name : run.index === 0) focus = run.index;
}

/** Scrolls to the section, again while what is above it is still coming, for a while and until the reader does something. */
function arrive() {
  if (!place.isWanted) return;
  $(place.section).scrollIntoView({ behavior: "instant" });
  place.settled = place.settled || setTimeout(() => { place.isWanted = false; place.settled = 0; }, 3000);
}

function followPlace() {
  takePlace();
  addEventListener("hashchange", async () => {
    takePlace();
    if (!focused()) return;
    see(focused());
    showSamples(focused(), false);
    await look();
    redraw();
  });
  for (const name of ["wheel", "pointerdown", "touchstart", "keydown"]) addEventListener(name, () => { place.isWanted = false; }, { passive: true });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']"), to = link && link.getAttribute("href").slice(1);
    if (!link || !$(to)) return;
    // The address holds more than a section.
    event.preventDefault();
    $(to).scrollIntoView();
    if (to === "main") return $(to).focus();
    place.section = SECTIONS.includes(to) ? to : "";
    keepPlace();
  });
  let still = 0;
  addEventListener("scroll", () => { clearTimeout(still); still = setTimeout(noteSection, 200); }, { passive: true });
}

/** The section that is read: the last one whose head is above the middle of the window. */
function noteSection() {
  if (place.isWanted) return;
  const above = SECTIONS.filter((id) => !$(id).hidden && $(id).getBoundingClientRect().top < innerHeight / 2);
  // The last one may be too short to come up.
  const isEnd = scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
  const now = scrollY < 40 ? "" : (isEnd ? SECTIONS[SECTIONS.length - 1] : above.pop()) || "";
  if (now === place.section) return;
  place.section = now;
  keepPlace();
}
