// The processes that train one model: a row each, and the one that the others wait for. A run of one rank has no rows.
const DOES = { starts: "starts", computes: "computes", waits: "waits for others", stopped: "stopped by a signal", lost: "says nothing", finished: "finished", interrupted: "ended by a signal", ended: "ended" };

function drawRanks(run) {
  const ranks = run && run.brief.ranks, rows = (ranks && ranks.rows) || [];
  $("ranks").hidden = !rows.length;
  if (!rows.length) return;
  const last = run.brief.state === "running" ? "" : "As they were last seen. ";
  say($("ranks-hint"), last + (isNumber(ranks.slowest) ? "Rank " + ranks.slowest + " is the slowest: the others wait for it." : "None waits for another."));
  const share = (r) => (r.planned_bytes ? ", " + percent(r.held_bytes / r.planned_bytes) + " of its line" : "");
  fillIf($("rank-rows"), JSON.stringify([run.index, ranks]), () => [
    ranks.ended ? el("p", { class: "hint" }, ranks.ended) : null,
    table("Ranks", ["rank", "does", "phase", "step", "memory", "line", "waited", "pid"], rows.map((r) => [
      String(r.rank) + (r.rank === ranks.slowest ? " (slowest)" : ""), DOES[r.state] || String(r.state), r.phase ? r.phase + ", " + duration(r.seconds_in_phase) : "–",
      whole(r.step) + " of " + whole(r.steps), bytes(r.held_bytes) + share(r), bytes(r.planned_bytes), duration(r.seconds_waited), String(r.trainer)]))]);
}
