// Samples: prompt, response, reward, and how likely each token was.
const search = { next: null, run: -1, key: "", turn: 0 };

function tokensOf(text, logprobs, chars) {
  const letters = Array.from(text || "");
  if (!Array.isArray(logprobs) || !logprobs.length) return [{ text: text || "" }];
  // Without token lengths, one token per byte is the only case that can be recognised.
  let lengths = Array.isArray(chars) ? chars : letters.length === letters.filter((c) => c < "\u0080").length && letters.length <= logprobs.length && logprobs.length - letters.length <= 1
    ? logprobs.map((_, i) => (i < letters.length ? 1 : 0)) : null;
  if (!lengths) return [{ text: text || "" }];
  let at = 0;
  const tokens = logprobs.map((logprob, i) => {
    const part = letters.slice(at, at + (lengths[i] || 0)).join("");
    at += lengths[i] || 0;
    return { text: part, logprob };
  });
  if (at < letters.length) tokens.push({ text: letters.slice(at).join("") });
  return tokens;
}

/** Which weights drew a response that took several steps. */
function versions(runs) {
  return runs && runs.length > 1 ? ", drawn by the weights after " + runs.map(([updates, tokens]) => whole(updates) + " updates (" + whole(tokens) + ")").join(", ") : "";
}

function response(text, logprobs, chars, finish) {
  const tokens = tokensOf(text, logprobs, chars);
  const scored = tokens.some((t) => isNumber(t.logprob));
  const lastScored = tokens.map((t) => isNumber(t.logprob)).lastIndexOf(true);
  const spans = tokens.map((token, i) => {
    if (!isNumber(token.logprob)) return token.text ? document.createTextNode(visible(token.text)) : null;
    const p = Math.exp(token.logprob);
    const isEnd = !token.text && i === lastScored && finish === "eos";
    const level = p > 0.9 ? 0 : p > 0.6 ? 1 : p > 0.3 ? 2 : p > 0.1 ? 3 : 4;
    const span = el("span", { class: "token u" + level + (token.text ? "" : " mute"), tabindex: i === 0 ? 0 : -1 }, token.text || (isEnd ? "end" : "·"));
    span.say = [token.text ? "“" + token.text + "”" : isEnd ? "end of the response" : "part of a character, or a token that is not shown", "probability " + (p < 0.001 ? p.toExponential(1) : (100 * p).toFixed(p > 0.999 ? 2 : 1) + " %"), "log-prob " + token.logprob.toFixed(4)];
    span.setAttribute("aria-label", span.say.join(", "));
    return span;
  });
  return el("div", { class: "response" + (scored ? " scored" : ""), role: scored ? "group" : null, "aria-label": scored ? "Response, token by token" : null }, spans);
}

// One set of listeners for all tokens on the page.
for (const name of ["mouseover", "focusin"]) $("rows").addEventListener(name, (event) => event.target.say && tip.show(event.target, ...event.target.say));
for (const name of ["mouseout", "focusout"]) $("rows").addEventListener(name, (event) => event.target.say && tip.hide());
$("rows").addEventListener("keydown", (event) => {
  const by = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  if (!by || !event.target.say) return;
  let to = event.target[by];
  while (to && !to.say) to = to[by];
  if (to) { event.preventDefault(); event.target.tabIndex = -1; to.tabIndex = 0; to.focus(); }
});

/** The images of a prompt: a small copy if there is one, else the name and the size. */
function pictures(images) {
  if (!Array.isArray(images) || !images.length) return null;
  const size = (image) => [image.name, isNumber(image.width) ? whole(image.width) + " x " + whole(image.height) + " pixels" : null, isNumber(image.tokens) ? whole(image.tokens) + " tokens" : null].filter(Boolean).join(", ");
  const picture = (image) => el("figure", {},
    typeof image.data === "string" && image.data.startsWith("data:image/png;base64,") ? el("img", { src: image.data, alt: image.name || "image of the prompt" }) : null,
    el("figcaption", { class: "soft" }, size(image)));
  return el("div", { class: "pictures" }, images.map(picture));
}

function sampleCard(row) {
  const reward = row.reward;
  const tone = !isNumber(reward) ? "none" : reward > 0 ? "good" : "bad";
  const parts = Object.entries(row.rewards || {});
  const transcript = Array.isArray(row.turns);
  return el("article", { class: "card sample" },
    el("div", { class: "sample-head" },
      el("span", { class: "reward " + tone }, isNumber(reward) ? number(reward) : "no score"),
      el("span", { class: "soft" }, (String(row.file).startsWith("eval") ? "evaluation, " : "") + "step " + whole(row.step)),
      row.set ? el("span", { class: "soft" }, row.set) : null,
      isNumber(row.prompt_index) ? el("span", { class: "soft" }, "prompt " + whole(row.prompt_index) + (isNumber(row.sample) ? ", sample " + whole(row.sample) + " of its group" : "")) : null,
      isNumber(row.response_tokens) ? el("span", { class: "soft" }, whole(row.response_tokens) + " tokens" + (row.finish && row.finish !== "eos" ? ", ended by " + row.finish : "") + versions(row.policy_versions)) : null,
      parts.length > 1 ? parts.map(([name, value]) => el("span", { class: "soft" }, name + " " + number(value))) : null),
    row.system_prompt ? el("div", { class: "prompt" }, el("b", {}, "system "), row.system_prompt) : null,
    pictures(row.images),
    transcript ? turns(row) : [el("div", { class: "prompt" }, row.prompt || ""), response(row.response, row.logprobs, row.token_chars, row.finish)],
    row.ground_truth ? el("p", { class: "truth" }, el("b", {}, "ground truth "), row.ground_truth) : null);
}

function turns(row) {
  const message = (m) => el("div", { class: "prompt" }, el("b", {}, (m.role || "") + " "), m.content || "");
  return [(row.messages || []).map(message),
    row.turns.map((turn) => [response(turn.response, turn.logprobs, null), (turn.said || []).map(message)])];
}

async function showSamples(run, more) {
  if (!run) return;
  const query = { words: $("words").value.trim(), file: $("file").value, reward: $("reward").value, next: more ? search.next : null };
  const turn = (search.turn += 1);
  if (!more) search.next = null;
  let found;
  try { found = await source.samples(run.index, query); } catch { return; }
  if (turn !== search.turn) return;
  search.next = found.next;
  const cards = found.rows.map(sampleCard);
  if (more) $("rows").append(...cards);
  else fill($("rows"), cards.length ? cards : el("p", { class: "card hint" }, query.words || query.file || query.reward ? "No sample matches, among those that were read." : "No samples yet."));
  // The page keeps a bounded number of them.
  while ($("rows").children.length > 400) $("rows").firstChild.remove();
  say($("found"), query.words && !more ? (found.rows.length || "none") + (found.next ? " or more" : "") + " found" : "");
  $("next").hidden = !found.next;
  arrive();
}

/** The list of files; new samples are shown only unless the reader searches or has paged on. */
function drawSamples(run) {
  const detail = run && run.detail;
  if (!detail) return;
  const files = source.isLive ? detail.sample_files : detail.sample_files.filter((file) => embedded.runs[run.index].samples.some((row) => row.file === file));
  const key = JSON.stringify([run.index, files]);
  if (search.key === key) return;
  const other = search.run !== run.index;
  const chosen = search.run === -1 ? place.wanted.get("file") || "" : other ? "" : $("file").value;
  fill($("file"), el("option", { value: "" }, "all files"), files.slice(0, 500).map((file) => el("option", { value: file }, file.replace(/\.jsonl$/, ""))));
  $("file").value = files.includes(chosen) ? chosen : "";
  search.key = key;
  search.run = run.index;
  const busy = !other && ($("words").value || chosen || $("rows").children.length > 20 || $("rows").contains(document.activeElement));
  if (!busy) showSamples(run, false);
}
