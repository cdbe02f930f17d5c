//! `plan --svg`: memory over the phases of one step, region by region, under the load line, with a run's measurements
//! if there are any. The load line is the planned peak, as in `plimsoll watch`; the limit is another line.
//!
//! It draws the output of `plan --json`, so a plan and a run directory's `plan.json` look alike. One panel per pool.

use super::measured::Measured;
use super::picture::{self, fitted, line, round_step, text};
use plimsoll_base::{Bytes, Phase};
use serde_json::Value;
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 84.0;
/// Space for the resident total next to the plot.
const RIGHT: f64 = 104.0;
/// Height from the top of a panel to its plot; the first panel's holds title and legend.
const TOP: f64 = 82.0;
const PLOT_HEIGHT: f64 = 430.0;
/// Height from the plot to the next panel, for the phases' names.
const BOTTOM: f64 = 34.0;
const PANEL_HEIGHT: f64 = TOP + PLOT_HEIGHT + BOTTOM;
/// A band below this height has no room for its name and joins the small ones.
const LABEL_HEIGHT: f64 = 13.0;
/// The band of small rows of several kinds has smaller letters.
const SMALL_LABEL_HEIGHT: f64 = 9.0;
/// A limit up to this multiple of the peak is drawn to scale; a larger one is drawn at the top and labelled as such.
const LIMIT_ON_SCALE: f64 = 1.4;
/// Space above the higher of peak and limit, as a factor, for their labels.
const HEADROOM: f64 = 1.16;

/// The purpose of a region, which decides its colour: class in the style sheet, word in the legend.
const KINDS: [(&str, &str); 7] = [
    ("weights", "weights"),
    ("states", "gradients and optimizer states"),
    ("kv", "keys and values"),
    ("acts", "activations"),
    ("head", "head"),
    ("process", "process"),
    ("outside", "kernel, workers"),
];

/// The style on a light background and on a dark one.
const STYLE: [&str; 2] = [
    "\
.axis{stroke:#8a97a3}\
.band{stroke:#fff;stroke-width:1}.weights{fill:#9ecae9}.states{fill:#cbb8ea}.kv{fill:#a9dbb4}.acts{fill:#fbd5a0}.head{fill:#f5b7a9}\
.process{fill:#d3dae1}.outside{fill:#ece5cf}.line{stroke:#b3261e;stroke-width:2;fill:none}.linetext{fill:#b3261e;font-weight:600}.limit{stroke:#5d6b78;fill:none}\
.meas{stroke:#0b2e4a;stroke-width:3}.meastext{fill:#0b2e4a;font-weight:600}.halo{fill:#fff;opacity:.86}.mixed{fill:#eef1f4}.idle{fill:none;stroke:#8a97a3;stroke-dasharray:3 4}.small{font-size:9.5px}.disc{fill:#fff}",
    "\
.axis{stroke:#6b7885}\
.band{stroke:#0d1117}.weights{fill:#1f5f8b}.states{fill:#5c4796}.kv{fill:#2c6b45}.acts{fill:#85591f}.head{fill:#8f4236}\
.process{fill:#46505b}.outside{fill:#5f5942}.line{stroke:#ff8077}.linetext{fill:#ff8077}.limit{stroke:#9aa7b3}.meas{stroke:#dceaf7}.meastext{fill:#dceaf7}\
.halo{fill:#0d1117}.mixed{fill:#2b333c}.idle{stroke:#6b7885}.disc{fill:#0d1117}",
];

#[derive(Clone, Debug, PartialEq)]
struct Row {
    name: String,
    kind: usize,
    /// None if resident.
    phases: Option<Vec<String>>,
    bytes: u64,
    /// True if it has an address in the arena.
    arena: bool,
}

/// The rows of one pool and its limit.
struct Panel<'p> {
    pool: &'p str,
    rows: Vec<Row>,
    /// The planned peak.
    planned: u64,
    limit: Option<(u64, String)>,
    /// Phases with bytes of their own, or the one that every step has.
    phases: Vec<Phase>,
    measured: &'p Measured,
    /// Bytes at the top of the plot.
    top: f64,
    y: f64,
}

/// Returns the regions except those of the smaller turn, which share the same bytes.
pub fn larger_turn(regions: &[Value]) -> impl Iterator<Item = &Value> {
    let bytes = |turn: &str| -> u64 {
        let of_turn = regions.iter().filter(|r| r["turn"] == turn);
        of_turn.filter_map(|r| r["bytes"].as_u64()).sum()
    };
    let hidden = if bytes("layers") < bytes("head") { "layers" } else { "head" };
    regions.iter().filter(move |r| r["turn"] != hidden)
}

/// Draws the output of `plan --json`. `title` is for people; `measured` is empty before a run.
pub fn draw(plan: &Value, title: &str, measured: &Measured) -> String {
    let nothing = Measured::default();
    let pools: Vec<&str> = ["device", "host", "shm"]
        .into_iter()
        .filter(|pool| plan["pools"][pool]["peak_bytes"].as_u64().is_some_and(|bytes| bytes > 0))
        .collect();
    let height = PANEL_HEIGHT * pools.len() as f64;
    let panels: Vec<Panel> = pools
        .iter()
        .enumerate()
        .map(|(i, pool)| {
            // A process measures only its host memory.
            let measured = if *pool == "host" { measured } else { &nothing };
            Panel::new(plan, pool, measured, PANEL_HEIGHT * i as f64)
        })
        .collect();
    let words: Vec<String> = panels.iter().map(Panel::words).collect();
    let mut out = picture::begin([WIDTH, height], "", STYLE, title, &words.join(" "));
    text(&mut out, LEFT, 26.0, "title", title);
    legend(&mut out, &panels);
    for panel in &panels {
        panel.draw(&mut out);
    }
    out.push_str("</svg>\n");
    out
}

impl<'p> Panel<'p> {
    fn new(plan: &Value, pool: &'p str, measured: &'p Measured, y: f64) -> Panel<'p> {
        let regions = plan["regions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let rows: Vec<Row> = larger_turn(regions).filter_map(|region| row(region, pool)).collect();
        let own = |phase: &Phase| {
            let name = phase.name();
            let in_it = |row: &Row| row.phases.as_ref().is_some_and(|p| p.iter().any(|p| p == name));
            // Every run grades, but only one with a reward model has memory for it.
            let is_read = *phase != Phase::Reward && measured.phases.iter().any(|(read, _)| read == phase);
            rows.iter().any(in_it) || is_read
        };
        let mut phases: Vec<Phase> = Phase::ALL.into_iter().filter(own).collect();
        if phases.is_empty() {
            phases.push(Phase::Update);
        }
        let entry = &plan["pools"][pool];
        let source = entry["limit_source"].as_str().unwrap_or_default().to_string();
        let limit = entry["limit_bytes"].as_u64().map(|bytes| (bytes, source));
        let peak = entry["peak_bytes"].as_u64().unwrap_or(1).max(measured.peak.unwrap_or(0)) as f64;
        let planned = entry["peak_bytes"].as_u64().unwrap_or(0);
        let on_scale = limit.as_ref().map(|(bytes, _)| *bytes as f64).filter(|&b| b <= LIMIT_ON_SCALE * peak);
        let top = peak.max(on_scale.unwrap_or(0.0)) * HEADROOM;
        Panel { pool, rows, planned, limit, phases, measured, top, y }
    }

    /// Describes the panel in words.
    fn words(&self) -> String {
        let resident = Bytes(self.resident().iter().map(|row| row.bytes).sum());
        let phases: Vec<String> =
            self.phases.iter().map(|&p| format!("{} {}", p.name(), Bytes(self.total(p)))).collect();
        let limit = match &self.limit {
            Some((bytes, source)) => format!("the limit is {} ({source})", Bytes(*bytes)),
            None => "there is no limit".into(),
        };
        let measured: Vec<String> =
            self.measured.phases.iter().map(|(p, b)| format!("{} {}", p.name(), Bytes(*b))).collect();
        let measured =
            if measured.is_empty() { String::new() } else { format!(" Measured: {}.", measured.join(", ")) };
        let (pool, phases) = (self.pool, phases.join(", "));
        format!("{pool} memory of one step: resident {resident}; {phases}; {limit}.{measured}")
    }

    fn resident(&self) -> Vec<Row> {
        self.rows.iter().filter(|row| row.phases.is_none()).cloned().collect()
    }

    fn own(&self, phase: Phase) -> Vec<Row> {
        let in_it = |row: &&Row| row.phases.as_ref().is_some_and(|p| p.iter().any(|p| p == phase.name()));
        self.rows.iter().filter(in_it).cloned().collect()
    }

    /// Returns the arena bytes that only this phase uses.
    fn overlay(&self, phase: Phase) -> u64 {
        self.own(phase).iter().filter(|row| row.arena).map(|row| row.bytes).sum()
    }

    /// Draws the unused rest: the arena is as large as its largest phase, so other phases leave part of it unused.
    fn idle(&self, out: &mut String, phase: Phase, x: f64, width: f64) {
        let largest = self.phases.iter().map(|&phase| self.overlay(phase)).max().unwrap_or(0);
        let (bytes, total) = (largest - self.overlay(phase), self.total(phase));
        let (top, bottom) = (self.y_of((total + bytes) as f64), self.y_of(total as f64));
        if bottom - top < 3.0 * LABEL_HEIGHT {
            return;
        }
        let _ = writeln!(
            out,
            "<rect class=\"idle\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/>",
            bottom - top
        );
        let words = in_band(&format!("arena, idle in this phase: {}", Bytes(bytes)), width);
        text(out, x + width / 2.0, top + 15.0, "mid soft", &words);
    }

    fn total(&self, phase: Phase) -> u64 {
        self.resident().iter().chain(&self.own(phase)).map(|row| row.bytes).sum()
    }

    fn y_of(&self, bytes: f64) -> f64 {
        self.y + TOP + PLOT_HEIGHT * (1.0 - bytes / self.top)
    }

    fn draw(&self, out: &mut String) {
        let _ = writeln!(out, "<g>");
        self.axis(out);
        let width = WIDTH - LEFT - RIGHT;
        let column = width / self.phases.len() as f64;
        let resident = self.resident();
        self.stack(out, &resident, 0.0, LEFT, width);
        let base: u64 = resident.iter().map(|row| row.bytes).sum();
        for (i, &phase) in self.phases.iter().enumerate() {
            let x = LEFT + column * i as f64;
            self.stack(out, &self.own(phase), base as f64, x + 5.0, column - 10.0);
            self.idle(out, phase, x + 5.0, column - 10.0);
            self.column_words(out, phase, x, column);
        }
        self.bracket(out, base);
        if let (true, Some(peak)) = (self.measured.phases.is_empty(), self.measured.peak) {
            self.measured_mark(out, peak, "measured peak", LEFT, width);
        }
        self.limit_line(out);
        self.load_line(out);
        let _ = writeln!(out, "</g>");
    }

    /// Draws gridlines at round numbers of bytes.
    fn axis(&self, out: &mut String) {
        let (step, unit, name) = axis_step(self.top);
        let mut count = 0.0;
        while count * step * unit <= self.top * 0.98 {
            let y = self.y_of(count * step * unit);
            let class = if count == 0.0 { "axis" } else { "grid" };
            line(out, LEFT, y, WIDTH - RIGHT, y, class);
            text(out, LEFT - 8.0, y + 4.0, "soft end", &tick(count * step, name));
            count += 1.0;
        }
        let words = format!("{} memory", self.pool);
        text(out, LEFT, self.y + TOP - 10.0, "bold", &words);
    }

    /// Marks the resident part next to the plot.
    fn bracket(&self, out: &mut String, resident: u64) {
        let (x, from, to) = (WIDTH - RIGHT + 6.0, self.y_of(0.0), self.y_of(resident as f64));
        let _ = writeln!(out, "<path class=\"axis\" fill=\"none\" d=\"M{x} {from:.1}h5V{to:.1}h-5\"/>");
        text(out, x + 11.0, (from + to) / 2.0 - 2.0, "soft", "resident");
        text(out, x + 11.0, (from + to) / 2.0 + 13.0, "bold", &Bytes(resident).to_string());
    }

    /// Stacks rows upward from `base` bytes; rows too thin for a name share one band.
    fn stack(&self, out: &mut String, rows: &[Row], base: f64, x: f64, width: f64) {
        let per_byte = PLOT_HEIGHT / self.top;
        let mut bytes = base;
        for (class, bands) in merged(rows, LABEL_HEIGHT / per_byte, SMALL_LABEL_HEIGHT / per_byte) {
            for band in bands {
                let (height, y) = (band.bytes as f64 * per_byte, self.y_of(bytes + band.bytes as f64));
                let size = Bytes(band.bytes);
                let _ = writeln!(
                    out,
                    "<rect class=\"band {class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"><title>{}  {size}</title></rect>",
                    picture::escape(&band.name)
                );
                let middle = y + height / 2.0;
                if height >= LABEL_HEIGHT - 0.5 {
                    text(out, x + 8.0, middle + 4.0, "", &in_band(&band.name, width - 70.0));
                    text(out, x + width - 8.0, middle + 4.0, "end", &size.to_string());
                } else if height >= SMALL_LABEL_HEIGHT {
                    text(out, x + 8.0, middle + 3.5, "small", &in_band(&band.name, width - 70.0));
                    text(out, x + width - 8.0, middle + 3.5, "small end", &size.to_string());
                }
                bytes += band.bytes as f64;
            }
        }
    }

    /// Writes name and planned peak of a phase, and its measurement.
    fn column_words(&self, out: &mut String, phase: Phase, x: f64, width: f64) {
        let (middle, total) = (x + width / 2.0, self.total(phase));
        text(out, middle, self.y + TOP + PLOT_HEIGHT + 20.0, "mid bold", phase.name());
        let planned = format!("planned {}", Bytes(total));
        text(out, middle, self.y_of(total as f64) - 7.0, "mid bold", &planned);
        if let Some(&(_, measured)) = self.measured.phases.iter().find(|(p, _)| *p == phase) {
            self.measured_mark(out, measured, "measured", x, width);
        }
    }

    /// Draws a line at the measurement, with its label below it on a readable ground.
    fn measured_mark(&self, out: &mut String, bytes: u64, words: &str, x: f64, width: f64) {
        let (y, middle) = (self.y_of(bytes as f64), x + width / 2.0);
        line(out, x + 2.0, y, x + width - 2.0, y, "meas");
        let words = format!("{words} {}", Bytes(bytes));
        let half = 3.6 * words.len() as f64;
        let _ = writeln!(
            out,
            "<rect class=\"halo\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"17\" rx=\"3\"/>",
            middle - half,
            y + 4.0,
            2.0 * half
        );
        text(out, middle, y + 17.0, "mid meastext", &words);
    }

    /// Draws the load line with the mark of a ship's side: a disc under a line.
    fn load_line(&self, out: &mut String) {
        // The mark is in the margin, where it covers no band's number.
        let (x, y) = (WIDTH - RIGHT, self.y_of(self.planned as f64));
        let _ = writeln!(
            out,
            "<path class=\"line\" d=\"M{LEFT} {y:.1}H{}\"/><circle class=\"line disc\" cx=\"{}\" cy=\"{y:.1}\" r=\"7\"/><path class=\"line\" d=\"M{} {y:.1}h22\"/>",
            x + 23.0,
            x + 12.0,
            x + 1.0
        );
        text(out, x + 27.0, y - 2.0, "linetext", "load line");
        text(out, x + 27.0, y + 13.0, "linetext", &Bytes(self.planned).to_string());
    }

    /// Draws the limit, which the plan may or may not reach.
    fn limit_line(&self, out: &mut String) {
        let Some((bytes, source)) = &self.limit else { return };
        let on_scale = *bytes as f64 <= self.top;
        let y = if on_scale { self.y_of(*bytes as f64) } else { self.y + TOP };
        let _ = writeln!(
            out,
            "<path class=\"limit\" d=\"M{LEFT} {y:.1}H{}\" stroke-dasharray=\"7 5\"/>",
            WIDTH - RIGHT
        );
        let far = if on_scale { "" } else { ", above this scale" };
        let words = format!("limit {}{far}: {source}", Bytes(*bytes));
        text(out, WIDTH - RIGHT - 8.0, y - 7.0, "soft end", &words);
    }
}

/// Reads a region of the pool; pinned memory belongs to the host.
fn row(region: &Value, pool: &str) -> Option<Row> {
    let of = region["pool"].as_str()?;
    let (name, place) = (region["name"].as_str()?, region["place"].as_str().unwrap_or_default());
    let phases: Vec<String> =
        region["phases"].as_array()?.iter().filter_map(|p| p.as_str().map(str::to_string)).collect();
    let resident = phases.iter().any(|p| p == "resident");
    (of == pool || (pool == "host" && of == "pinned")).then(|| Row {
        name: name.to_string(),
        kind: KINDS.iter().position(|(known, _)| *known == kind(name, place)).expect("a kind of the table"),
        phases: (!resident).then_some(phases),
        bytes: region["bytes"].as_u64().unwrap_or(0),
        arena: place == "arena",
    })
}

/// Returns the class in `KINDS` that a region is drawn as.
pub fn kind(name: &str, place: &str) -> &'static str {
    match (place, name.rsplit('.').next().unwrap_or_default()) {
        ("kernel" | "workers", _) => "outside",
        ("heap" | "process" | "file", _) => "process",
        (_, "weights") => "weights",
        (_, "grads" | "master" | "adam_m" | "adam_v") => "states",
        (_, "keys" | "values") => "kv",
        _ if name.contains(".head.") => "head",
        _ => "acts",
    }
}

/// Returns bands by kind, the largest first. Rows under `least` merge by kind, bands under `least_joined` into one.
fn merged(rows: &[Row], least: f64, least_joined: f64) -> Vec<(&'static str, Vec<Row>)> {
    let (mut bands, mut rest) = (Vec::new(), Vec::new());
    for (kind, &(class, words)) in KINDS.iter().enumerate() {
        let mut own: Vec<Row> =
            rows.iter().filter(|row| row.kind == kind && row.bytes > 0).cloned().collect();
        own.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.name.cmp(&b.name)));
        let (mut large, small): (Vec<Row>, Vec<Row>) =
            own.into_iter().partition(|row| row.bytes as f64 >= least);
        let name = if large.is_empty() { words.to_string() } else { format!("other {words}") };
        match (joined(&name, &small), small.len()) {
            (Some(band), _) if band.bytes as f64 >= least_joined => large.push(band),
            (Some(band), _) => rest.push(band),
            (None, _) => {}
        }
        if !large.is_empty() {
            bands.push((class, large));
        }
    }
    if let Some(band) = joined("smaller rows", &rest) {
        let one_kind = rest.iter().all(|row| row.kind == rest[0].kind);
        bands.push((if one_kind { KINDS[rest[0].kind].0 } else { "mixed" }, vec![band]));
    }
    bands
}

fn joined(name: &str, rows: &[Row]) -> Option<Row> {
    let first = rows.first()?;
    let bytes = rows.iter().map(|row| row.bytes).sum();
    let name = if rows.len() == 1 { first.name.clone() } else { name.to_string() };
    Some(Row { name, bytes, ..first.clone() })
}

/// Draws the legend of the colours in use.
fn legend(out: &mut String, panels: &[Panel]) {
    let mut x = LEFT;
    for (kind, (class, words)) in KINDS.iter().enumerate() {
        if !panels.iter().any(|panel| panel.rows.iter().any(|row| row.kind == kind && row.bytes > 0)) {
            continue;
        }
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"36\" width=\"11\" height=\"11\" rx=\"2\"/>"
        );
        text(out, x + 16.0, 46.0, "soft", words);
        x += 30.0 + 6.1 * words.len() as f64;
    }
}

/// Returns the spacing of about five gridlines up to `top` bytes, its unit, and the unit's name: 1, 2 or 5 times a
/// power of ten of one unit, so that equal spacings have equal numbers.
fn axis_step(top: f64) -> (f64, f64, &'static str) {
    const UNITS: [(u64, &str); 5] =
        [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")];
    let (unit, name) = UNITS.into_iter().find(|(unit, _)| top >= *unit as f64).unwrap_or((1, "B"));
    (round_step(top / 5.0 / unit as f64), unit as f64, name)
}

/// Formats a gridline's number without needless decimals.
fn tick(number: f64, unit: &str) -> String {
    let number = format!("{number:.2}");
    format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
}

/// Cuts words to a band's width, at about 6.3 pixels a letter.
fn in_band(words: &str, width: f64) -> String {
    fitted(words, ((width - 14.0) / 6.3).max(1.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan() -> Value {
        let region = |name: &str, place: &str, phases: &[&str], bytes: u64| json!({ "name": name, "place": place, "pool": "host", "phases": phases, "bytes": bytes });
        json!({
            "pools": { "host": { "limit_bytes": 1200, "limit_source": "a <b> & c", "peak_bytes": 1000 } },
            "regions": [
                region("actor.weights", "arena", &["resident"], 400),
                region("actor.adam_m", "arena", &["resident"], 100),
                region("process.heap", "process", &["resident"], 3),
                region("process.image", "process", &["resident"], 2),
                region("rollout.keys", "arena", &["rollout"], 300),
                region("update.resid", "arena", &["update"], 490),
                region("update.head.tile", "arena", &["update"], 5),
            ],
        })
    }

    /// Returns the bytes of every band, read from its tooltip.
    fn drawn(svg: &str) -> u64 {
        let titles = svg.split("<title>").skip(1).filter_map(|part| part.split("</title>").next());
        titles.filter_map(|t| t.rsplit("  ").next()?.strip_suffix(" B")?.parse::<u64>().ok()).sum()
    }

    #[test]
    fn every_byte_is_drawn_once_and_small_rows_are_one_band() {
        let svg = draw(&plan(), "x", &Measured::default());
        assert_eq!(drawn(&svg), 400 + 100 + 5 + 300 + 495);
        assert!(!svg.contains("process.heap") && svg.contains("actor.weights  400 B</title>"), "{svg}");
        assert!(!svg.contains(">score<"), "a phase without bytes of its own has a column");
    }

    #[test]
    fn the_load_line_is_the_plan_and_the_limit_is_another() {
        let mut plan = plan();
        let svg = draw(&plan, "x", &Measured::default());
        assert!(svg.contains("limit 1.2 KiB: a &lt;b&gt; &amp; c"), "{svg}");
        plan["pools"]["host"]["limit_bytes"] = json!(1 << 30);
        let far = draw(&plan, "x", &Measured::default());
        assert!(far.contains(">limit 1.0 GiB, above this scale: a"), "{far}");
        plan["pools"]["host"]["limit_bytes"] = Value::Null;
        let none = draw(&plan, "x", &Measured::default());
        assert!(!none.contains(">limit "), "{none}");
        for svg in [svg, far, none] {
            assert!(svg.contains(">load line</text>") && svg.contains("\"linetext\">1000 B</text>"), "{svg}");
        }
    }

    #[test]
    fn measured_peaks_have_their_mark() {
        let mut measured = Measured::default();
        (measured.phases, measured.peak) = (vec![(Phase::Update, 960)], Some(970));
        let svg = draw(&plan(), "x", &measured);
        assert!(svg.contains("measured 960 B") && svg.contains("Measured: update 960 B."), "{svg}");
    }

    #[test]
    fn steps_of_the_axis_are_even_in_one_unit() {
        for (top, ticks) in [
            (17.0, ["0 B", "5 B", "10 B"]),
            (1100.0, ["0 KiB", "0.5 KiB", "1 KiB"]),
            (3.4 * 1073741824.0, ["0 GiB", "1 GiB", "2 GiB"]),
            (2.4 * 1073741824.0, ["0 GiB", "0.5 GiB", "1 GiB"]),
            (1.1 * 1073741824.0, ["0 GiB", "0.5 GiB", "1 GiB"]),
            (999.0 * 1048576.0, ["0 MiB", "200 MiB", "400 MiB"]),
        ] {
            let (step, _, unit) = axis_step(top);
            assert_eq!([0.0, 1.0, 2.0].map(|count| tick(count * step, unit)), ticks, "{top}");
        }
    }
}
