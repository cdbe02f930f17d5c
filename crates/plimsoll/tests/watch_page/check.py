"""The page of `plimsoll watch` in Chromium: check.py PLIMSOLL FOLDER. Exit 77 where there is no Chromium."""

import json
import os
import pathlib
import subprocess
import sys

import browser

HOSTILE = "<img src=x onerror=\"console.log('xss')\"><script>console.log('xss')</script>"


def step(n, steps):
    reward = (n % 10) / 10
    metrics = {"reward": reward, "entropy": 0.3, "kl": 0.0, "kl_to_rollout": 0.01, "completions/mean_length": 4.5, "grad_norm": 1.5}
    metrics |= {"time/rollout": 1.0, "time/update": 2.0, "tokens_per_second/rollout": 900.0}
    metrics |= {"memory/host/step/measured": 9e7, "memory/host/step/planned": 1e8, HOSTILE: 1.0}
    event = {"event": "step", "step": n, "steps": steps, "reward": reward, "planned_bytes": 10**8, "metrics": metrics}
    return json.dumps(event | {"seconds_since_start": n * 1.5, "seconds_left": (steps - n) * 1.5}) + "\n"


def memory(n):
    part = {"phase": "update", "planned_bytes": 10**8, "rss_bytes": 9 * 10**7}
    others = {"workers_bytes": 2 * 10**7, "workers_planned_bytes": 5 * 10**7, "supervisor_planned_bytes": 10**7}
    return json.dumps({"event": "memory", "step": n, "parts": [part]} | others) + "\n"


def make(folder, name, first, last):
    directory = folder / name
    (directory / "samples").mkdir(parents=True)
    started = {"event": "started", "what": HOSTILE, "steps": 100}
    warning = {"event": "warning", "slug": "over-the-line", "message": HOSTILE, "facts": [HOSTILE], "step": 0}
    lines = [json.dumps(started) + "\n", json.dumps(warning) + "\n"]
    lines += [step(n, 100) + memory(n) for n in range(first, last + 1)]
    (directory / "events.jsonl").write_text("".join(lines))
    region = {"name": HOSTILE, "pool": "host", "phases": ["resident"], "bytes": 10**8, "place": "arena"}
    pool = {"limit_bytes": 2 * 10**8, "limit_source": HOSTILE, "peak_bytes": 16 * 10**7}
    (directory / "plan.json").write_text(json.dumps({"pools": {"host": pool}, "regions": [region]}))
    rows = [{"step": 1, "prompt": HOSTILE, "response": "ab" + HOSTILE, "reward": i % 2, "set": HOSTILE, "prompt_index": 7, "sample": i,
             "ground_truth": "42" + HOSTILE, "system_prompt": "Be brief." + HOSTILE,
             "logprobs": [-0.1, -2.5], "token_chars": [1, 1], "finish": "eos"} for i in range(30)]
    (directory / "samples/step-000001.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "run.toml").write_text(f"# {HOSTILE}\n")
    return directory


def append(directory, text):
    with open(directory / "events.jsonl", "a") as log:
        log.write(text)


# Words that are not wholly within their card.
CLIPPED = """[...document.querySelectorAll(
    '.values > span, .legend li, .load span, .limit span, .verdict, .tiles dd, .tiles small, .chart h3, .name')].filter((n) => {
  const own = n.getBoundingClientRect(), card = (n.closest('.card, .tiles') || document.body).getBoundingClientRect();
  const hides = (box) => getComputedStyle(box).overflow !== 'visible' && (box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1);
  return own.left < card.left - 1 || own.right > card.right + 1 || own.bottom > card.bottom + 1 || hides(n) || hides(n.parentElement);
}).map((n) => n.className + ' ' + n.textContent)"""


def look_at(page, url, is_live):
    """What must hold on every width and in both colours."""
    for width, height in ((1440, 900), (390, 844)):
        for scheme in ("light", "dark"):
            page.size(width, height)
            page.colours(scheme)
            page.open(url)
            page.until("document.querySelectorAll('.chart canvas').length >= 5", "charts")
            page.until("document.querySelectorAll('.sample').length > 0", "samples")
            page.until("document.querySelectorAll('.hull .band').length > 0", "the memory picture")
            wide = page.run("document.documentElement.scrollWidth")
            assert wide <= width, f"{wide} pixels on a screen of {width}"
            assert page.run(CLIPPED) == [], (width, page.run(CLIPPED))
    # The load line is one, over the trainer and its workers, and both places show the same number.
    below = "47.7 MiB below the load line"
    for place in ("#hero", ".verdict"):
        words = page.run(f"document.querySelector('{place}').textContent")
        # Numbers and their units have a space between them that does not break.
        assert below in " ".join(words.split()), words
    # Equal distances have equal numbers, in one unit.
    ticks = page.run("[...document.querySelector('.hull').querySelectorAll('.tick span')].map((n) => n.textContent.split('\\u00a0'))")
    steps = {round(float(b[0]) - float(a[0]), 6) for a, b in zip(ticks, ticks[1:])}
    assert len(ticks) > 2 and len(steps) == 1 and len({unit for _, unit in ticks}) == 1, ticks
    titles = page.run("[...document.querySelectorAll('.chart h3')].map((n) => n.firstChild.textContent)")
    assert "KL to the policy of the rollout" in titles and "KL to the reference" not in titles, titles
    assert "Response length" in titles and "Episode length" not in titles, titles
    assert page.run("document.querySelectorAll('img, main script').length") == 0
    assert "xss" in page.run("document.querySelector('.what').textContent")
    unnamed = "[...document.querySelectorAll('button, input, select, a, [role=img]')].filter((n) => !(n.textContent.trim()"
    unnamed += " || n.getAttribute('aria-label') || n.closest('label'))).map((n) => n.outerHTML)"
    assert page.run(unnamed) == [], page.run(unnamed)
    assert page.run("document.querySelector('.area').getAttribute('aria-label')").startswith("Reward")
    for words in ("ground truth 42", "system Be brief.", "prompt 7, sample 0 of its group"):
        assert words in page.run("document.querySelector('.sample').textContent"), words
    page.run("document.querySelector('.chart details summary').click()")
    page.until("document.querySelectorAll('.chart table tbody tr').length > 3", "the table of a chart")
    page.run("document.querySelector('.token').focus()")
    page.until("!document.getElementById('tip').hidden", "a token's probability")
    assert "probability" in page.run("document.getElementById('tip').textContent")
    page.run("document.querySelector('.slug').click()")
    page.until("document.getElementById('page').open && document.getElementById('page-body').children.length > 1", "the page")
    page.run("document.getElementById('page-close').click()")
    search = "const w = document.getElementById('words'); w.value = 'NOWHERE'; w.dispatchEvent(new Event('input'))"
    page.run("{" + search + "}")
    page.until("document.querySelectorAll('.sample').length === 0", "a search without an end")
    page.run("{" + search.replace("NOWHERE", "onerror") + "}")
    page.until("document.querySelectorAll('.sample').length > 0", "a search")
    page.run("document.getElementById('theme').click()")
    assert page.run("document.documentElement.dataset.theme") == "light"
    if is_live:
        assert all(request.startswith((url, "data:")) for request in page.requests), page.requests


def follow(page, server_url, directory):
    """Steps that come, the end of the run, a start from an earlier step, and the end of the directory."""
    page.open(server_url)
    text = "document.getElementById('hero').textContent"
    page.until(f"{text}.includes('step 20 of 100')", "the steps so far")
    page.until("document.querySelector('.area') !== null", "a chart")
    # The curves of this run alone.
    page.run("document.getElementById('on-1').click()")
    append(directory, "".join(step(n, 100) for n in range(21, 41)))
    page.until(f"{text}.includes('step 40 of 100')", "steps that came")
    page.until("document.querySelector('.area').getAttribute('aria-label').includes('steps 1 to 40')", "their curve")
    (directory / "summary.json").write_text("{}")
    page.until(f"{text}.includes('finished')", "the end")
    (directory / "summary.json").unlink()
    lines = (directory / "events.jsonl").read_text().splitlines(keepends=True)
    before = [line for line in lines if json.loads(line).get("step", 0) <= 10]
    (directory / "events.jsonl").write_text("".join(before) + step(11, 100))
    page.until("document.querySelector('.area').getAttribute('aria-label').includes('steps 1 to 11')", "a run that went back")
    (directory / "crash.json").write_text(json.dumps({"slug": "disk-full", "message": HOSTILE, "step": 11}))
    page.until("document.querySelector('.crash') !== null", "the error")
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    directory.rmdir()
    page.until(f"{text}.includes('directory is gone')", "a directory that is gone")


TABLE = "[...document.querySelectorAll('#run-rows tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent))"

HEADS = "[...document.querySelectorAll('#run-rows thead th')].map((head) => head.textContent)"


def sweep(folder):
    """Two learning rates with two seeds each; one run is short, and texts are hostile."""
    for rate, seed, last in ((0.001, 1, 20), (0.001, 2, 20), (0.01, 1, 20), (0.01, 2, 5)):
        directory = make(folder, f"rate {rate} <b>{seed}", 1, last)
        keys = f"seed = {seed}\n[data]\nsame = 'for all'\n[train]\nlearning_rate = {rate}\n[run]\ndir = '{seed}{rate}'\n"
        # A text of the faster runs alone.
        keys += f"[text]\nnote = {json.dumps(HOSTILE)}\n" if rate > 0.005 else ""
        (directory / "run.toml").write_text(keys)
        score = 0.5 + seed / 10 - rate
        append(directory, json.dumps({"event": "eval", "step": last, "score": score}) + "\n")


def press(page, selector):
    page.run(f"document.querySelector({json.dumps(selector)}).click()")


def choose(page, selector, value):
    find = f"const s = document.querySelector({json.dumps(selector)})"
    page.run(f"{{ {find}; s.value = {json.dumps(value)}; s.dispatchEvent(new Event('change')) }}")


def compare(page, url):
    """A table that sorts, groups with their medians and bands, and an address that opens at the same place."""
    words = "document.querySelector('.area') && document.querySelector('.area').getAttribute('aria-label')"
    for width, height in ((1280, 900), (390, 844)):
        page.size(width, height)
        page.open("about:blank")
        page.open(url)
        page.until("document.querySelectorAll('.chart canvas').length >= 5", "charts")
        # Runs are rows before their settings are read, which a live page does one after the other, and drawn after that.
        known = f"{HEADS}.includes('note') && {TABLE}.every((row) => row[1] !== '–' && row[2] !== '–')"
        page.until(f"{TABLE}.length === 4 && {known}", "the rows with their settings")
        wide = page.run("document.documentElement.scrollWidth")
        assert wide <= width, f"{wide} pixels on a screen of {width}"
        heads = page.run(HEADS)
        # Keys that are equal in all runs, and places, are no columns.
        assert heads[:4] == ["run", "seed", "learning_rate", "note"] and "same" not in heads and "dir" not in heads, heads
        assert page.run(TABLE)[2][3] == HOSTILE, page.run(TABLE)
        held = heads.index("held out, last")
        page.run("document.querySelector('#sort-held').focus()")
        press(page, "#sort-held")
        scores = [float(row[held]) for row in page.run(TABLE)]
        assert scores == sorted(scores, reverse=True) and len(set(scores)) == 4, scores
        assert page.run("document.querySelector('#run-rows [aria-sort]').getAttribute('aria-sort')") == "descending"
        assert page.run("document.activeElement.id") == "sort-held", "the focus stays on the heading"
        choose(page, "#group", "train.learning_rate")
        rows = page.run(TABLE)
        assert [row[0] for row in rows] == ["learning_rate 0.0012 runs", "learning_rate 0.012 runs"], rows
        # The median of 0.599 and 0.699, and their range.
        assert rows[0][held] == "0.6490.599 to 0.699", rows
        page.until(f"{words}.includes('learning_rate 0.01:')", "a line for each group")
        press(page, ".chart details summary")
        page.until("document.querySelectorAll('.chart thead th').length === 5", "a column for each group's line")
        choose(page, "#x", "share")
        page.until(f"{words}.includes('share of the run')", "the share of the run")
        press(page, "#group-0")
        assert len(page.run(TABLE)) == 4
        press(page, "a[href='#memory']")
        address, before = page.run("location.href"), page.run("document.querySelector('#run-rows').innerHTML")
        page.open("about:blank")
        page.open(address)
        page.until(f"document.querySelector('#run-rows').innerHTML === {json.dumps(before)}", "the same rows")
        page.until(f"{words} && {words}.includes('learning_rate 0.01:') && {words}.includes('share')", "the same lines")
        assert page.run("document.querySelector('#group').value + document.querySelector('#x').value") == "train.learning_rateshare"
        top = "document.querySelector('#memory').getBoundingClientRect().top"
        page.until(f"Math.abs({top} - parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop)) < 3", "the same section")
        assert page.run("location.href") == address
        # An address of other runs, keys and sections is passed over.
        page.open("about:blank")
        page.open(url + "#%3Cimg%3E?group=none.such&run=none&off=none&sort=none&metric=none&zoom=b:a&open=%3Cimg%3E")
        page.until("document.querySelectorAll('.chart canvas').length >= 5", "charts of a strange address")
        page.until(f"{TABLE}.length === 4", "the rows of a strange address")
        assert page.run("document.querySelectorAll('img').length") == 0


def main():
    chromium = browser.find()
    if chromium is None:
        sys.exit(77)
    binary, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    live, other = make(folder, "live <b>run<", 1, 20), make(folder, "other", 1, 90)
    whole = folder / "out.html"
    subprocess.run([binary, "-q", "watch", "--static", whole, other, live], check=True)
    several, table = folder / "sweep", folder / "table.html"
    sweep(several)
    subprocess.run([binary, "-q", "watch", "--static", table, several], check=True)
    serve = [binary, "-q", "watch", "--port", "0"]
    server = subprocess.Popen([*serve, live, other], stdout=subprocess.PIPE, text=True)
    second = subprocess.Popen([*serve, several], stdout=subprocess.PIPE, text=True)
    page = browser.Browser(chromium)
    try:
        url = server.stdout.readline().strip()
        look_at(page, url, is_live=True)
        follow(page, url, live)
        assert page.complaints == [], page.complaints
        server.terminate()
        page.until("document.getElementById('link').textContent === 'no connection'", "the server's end")
        look_at(page, whole.as_uri(), is_live=False)
        # The browser reports requests to the server that ended, some of them late.
        complaints = [complaint for complaint in page.complaints if url not in complaint]
        assert complaints == [], complaints
        page.complaints.clear()
        compare(page, second.stdout.readline().strip())
        with (several / "rate 0.01 <b>2" / "run.toml").open("a") as settings:
            settings.write("[late]\nvalue = 1\n")
        page.until(f"{HEADS}.slice(0, 5).includes('value')", "a key that came after the rows were drawn")
        compare(page, table.as_uri())
        assert page.complaints == [], page.complaints
    finally:
        page.close()
        for process in (server, second):
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
