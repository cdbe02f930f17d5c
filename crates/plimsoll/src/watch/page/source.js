// Where the page's data comes from: the server, or the file it is in.
const embedded = $("data") ? JSON.parse($("data").textContent) : null;

async function get(path, params) {
  const query = new URLSearchParams(Object.entries(params || {}).filter(([, value]) => value !== null && value !== undefined));
  const answer = await fetch("api/" + path + (params ? "?" + query : ""), { credentials: "same-origin" });
  if (!answer.ok) throw new Error(path + ": " + answer.status);
  return answer.json();
}

const source = embedded ? {
  isLive: false,
  follow(onRuns) { onRuns(embedded.brief); },
  detail: async (run) => embedded.runs[run].detail,
  series: async (run) => embedded.runs[run].series,
  zoom: async () => null,
  page: async (slug) => embedded.pages[slug] || null,
  samples: async (run, query) => {
    const words = query.words.toLowerCase();
    const holds = (text) => typeof text === "string" && text.toLowerCase().includes(words);
    const rows = embedded.runs[run].samples.filter((row) =>
      (!query.file || row.file === query.file) && (!words || holds(row.prompt) || holds(row.response)) &&
      (!query.reward || (row.reward > 0) === (query.reward === "positive")));
    const from = query.next ? query.next.offset : 0;
    return { rows: rows.slice(from, from + 20), next: rows.length > from + 20 ? { file: "", offset: from + 20 } : null };
  },
} : {
  isLive: true,
  follow(onRuns, onLink) {
    const stream = new EventSource("api/events");
    stream.addEventListener("runs", (event) => { onLink(true); onRuns(JSON.parse(event.data)); });
    stream.addEventListener("open", () => onLink(true));
    stream.addEventListener("error", () => {
      onLink(false);
      // The browser retries by itself, unless the server refused.
      if (stream.readyState === EventSource.CLOSED) { stream.close(); setTimeout(() => source.follow(onRuns, onLink), 5000); }
    });
    addEventListener("pagehide", () => stream.close(), { once: true });
  },
  detail: (run) => get("detail", { run }),
  series: (run, epoch, from) => get("series", { run, epoch, from }),
  zoom: (run, first, last) => get("series", { run, first, last }),
  page: (slug) => get("page", { slug }).then((found) => found.page, () => null),
  samples: (run, query) => get("samples", {
    run, words: query.words, file: query.file, reward: query.reward,
    from_file: query.next && query.next.file, from_offset: query.next && query.next.offset,
  }),
};

/** Buckets of a run as the page holds them; new ones replace those from their index on. */
function merge(old, now) {
  if (!old || old.epoch !== now.epoch || old.width !== now.width || now.from > old.first.length) return now.from === 0 ? now : null;
  const join = (a, b) => a.slice(0, now.from).concat(b);
  const length = now.from + now.first.length, metrics = {};
  const empty = (n) => new Array(n).fill(null);
  for (const name of new Set([...Object.keys(old.metrics), ...Object.keys(now.metrics)])) {
    const a = old.metrics[name] || {}, b = now.metrics[name] || {};
    metrics[name] = {};
    for (const key of now.width > 1 ? ["mean", "min", "max"] : ["mean"]) {
      metrics[name][key] = join(a[key] || empty(now.from), b[key] || empty(length - now.from));
    }
  }
  return { epoch: now.epoch, width: now.width, from: 0, metrics,
    first: join(old.first, now.first), last: join(old.last, now.last), count: join(old.count, now.count) };
}
