//! A plan in words and as JSON: limits and their sources, a table by phase, the verdict, remedies, hazards, unknowns.

use super::hazards::{Hazard, Verdict};
use super::ledger::{Item, Phase, shown};
use super::limits::Known;
use super::pool::Pool;
use super::run::RunPlan;
use super::verdict::{Comparison, Over, Peak, Remedy};
use plimsoll_base::Bytes;
use serde_json::{Value, json};
use std::fmt::{Display, Write as _};

/// Most rows to show of the deciding phase.
const ROWS_SHOWN: usize = 12;

fn known<T: Clone>(value: &Option<Known<T>>, shown: impl Fn(&T) -> Value) -> Value {
    value
        .as_ref()
        .map_or(Value::Null, |known| json!({ "value": shown(&known.value), "source": known.source }))
}

impl RunPlan {
    pub fn to_json(&self) -> Value {
        json(self)
    }

    pub fn in_words(&self) -> String {
        words(self)
    }
}

fn json(plan: &RunPlan) -> Value {
    let limits = &plan.limits;
    let item = |item: &Item| {
        json!({
            "role": item.role, "name": item.name, "pool": item.pool.name(), "cards": plan.ledger.cluster.groups[item.group].name,
            "bytes": shown(item.bytes), "phases": item.phases.iter().map(|phase| phase.name()).collect::<Vec<_>>(),
            "formula": item.formula, "source": item.source,
        })
    };
    let peak = |peak: &Peak| json!({ "phase": peak.phase.name(), "pool": peak.pool.name(), "place": place(plan, peak), "bytes": peak.sum.bytes });
    let over = |over: &Over| {
        json!({
            "slug": over.slug, "phase": over.peak.phase.name(), "pool": over.peak.pool.name(), "place": place(plan, &over.peak),
            "bytes": over.peak.sum.bytes, "limit": over.limit, "limit_source": over.limit_source,
            "rows": over.peak.sum.rows.iter().map(|&(index, bytes)| {
                json!({ "role": plan.items()[index].role, "name": plan.items()[index].name, "bytes": bytes })
            }).collect::<Vec<_>>(),
        })
    };
    let remedy = |remedy: &Remedy| json!({ "words": remedy.words, "frees": remedy.frees, "is_enough": remedy.is_enough });
    let hazard = |hazard: &Hazard| {
        json!({
            "slug": hazard.slug, "verdict": hazard.verdict.name(), "finding": hazard.finding, "because": hazard.because,
            "remedies": hazard.remedies, "source": hazard.source,
        })
    };
    let comparison = |comparison: &Comparison| json!({ "what": comparison.what, "computed": comparison.computed, "reported": comparison.reported, "source": comparison.source });
    json!({
        "stack": plan.stack.name,
        "version": { "value": plan.version.value, "source": plan.version.source },
        "limits": {
            "gpus": known(&limits.gpus, |gpus| json!(gpus)),
            "gpu_memory": known(&limits.gpu_bytes, |bytes| json!(bytes)),
            "host_memory": known(&limits.host_bytes, |bytes| json!(bytes)),
            "shm": known(&limits.shm_bytes, |bytes| json!(bytes)),
            "kernel": known(&limits.kernel, |(major, minor)| json!(format!("{major}.{minor}"))),
        },
        "models": plan.ledger.models.iter().map(|(role, params)| json!({ "role": role, "parameters": params })).collect::<Vec<_>>(),
        "verdict": verdict_word(plan),
        "over": plan.verdict.over.as_ref().map(over),
        "remedies": plan.verdict.remedies.iter().map(remedy).collect::<Vec<_>>(),
        "hazards": plan.ledger.hazards.iter().map(hazard).collect::<Vec<_>>(),
        "peaks": plan.verdict.peaks.iter().map(peak).collect::<Vec<_>>(),
        "rows": plan.items().iter().map(item).collect::<Vec<_>>(),
        "comparisons": plan.comparisons.iter().map(comparison).collect::<Vec<_>>(),
        "unknown_options": plan.unknown, "defaults": plan.defaults, "notes": plan.ledger.notes,
    })
}

fn verdict_word(plan: &RunPlan) -> &'static str {
    match (&plan.verdict.over, plan.has_problem()) {
        (Some(_), _) => "does not fit",
        (None, true) => "problem",
        (None, false) => "fits",
    }
}

fn place(plan: &RunPlan, peak: &Peak) -> String {
    match peak.pool {
        Pool::Device => {
            let group = &plan.ledger.cluster.groups[usize::try_from(peak.place).unwrap_or_default()];
            format!("a card of {}", group.name)
        }
        Pool::Host => format!("node {}", peak.place + 1),
        Pool::Shm => format!("/dev/shm of node {}", peak.place + 1),
    }
}

/// Collects lines; a String takes any text, so writes cannot fail.
struct Page(String);

impl Page {
    fn line(&mut self, line: impl Display) {
        let _ = writeln!(self.0, "{line}");
    }

    fn section(&mut self, title: &str, lines: impl IntoIterator<Item = String>) {
        let lines: Vec<String> = lines.into_iter().collect();
        if !lines.is_empty() {
            self.line(format_args!("\n{title}"));
            lines.iter().for_each(|line| self.line(format_args!("  {line}")));
        }
    }
}

fn words(plan: &RunPlan) -> String {
    let mut page = Page(String::new());
    page.line(headline(plan));
    if let Some(over) = &plan.verdict.over {
        page.line(format_args!("more on this, and further remedies: plimsoll explain {}", over.slug));
    }
    page.section("problem", hazards(plan, Verdict::Problem).flat_map(hazard));
    page.section("cannot be judged before the run", hazards(plan, Verdict::Open).flat_map(hazard));
    page.section("by phase", table(plan));
    if let Some(peak) = deciding(plan) {
        let title = format!("{} at {}, the largest first", peak.phase.name(), place(plan, peak));
        page.section(&title, rows(plan, peak));
    }
    page.section(
        "do",
        plan.verdict.remedies.iter().enumerate().map(|(index, remedy)| numbered(index, remedy)),
    );
    page.section("reported of similar runs", plan.comparisons.iter().map(comparison));
    page.section("limits", limits(plan));
    page.section("options without a rule here: nothing was guessed of them", plan.unknown.iter().cloned());
    page.section("defaults of the framework that this rests on", plan.defaults.iter().cloned());
    let notes = hazards(plan, Verdict::Note).map(|hazard| format!("{}: {}", hazard.slug, hazard.finding));
    page.section("notes", plan.ledger.notes.iter().cloned().chain(notes));
    page.0
}

fn hazards(plan: &RunPlan, verdict: Verdict) -> impl Iterator<Item = &Hazard> {
    plan.ledger.hazards.iter().filter(move |hazard| hazard.verdict == verdict)
}

fn headline(plan: &RunPlan) -> String {
    if let Some(over) = &plan.verdict.over {
        return sentence(over);
    }
    let open = match hazards(plan, Verdict::Open).count() {
        0 => String::new(),
        count => format!("; {count} cannot be judged before the run"),
    };
    match hazards(plan, Verdict::Problem).count() {
        0 => format!("fits{open}"),
        count => format!("fits by its sizes, and {count} would bite{open}"),
    }
}

/// Returns the place of the verdict: the one over its limit, or the fullest.
fn deciding(plan: &RunPlan) -> Option<&Peak> {
    if let Some(over) = &plan.verdict.over {
        return Some(&over.peak);
    }
    let share = |peak: &&Peak| {
        let limit = plan.limits.of(peak.pool).filter(|_| peak.pool != Pool::Shm);
        limit.map_or(0.0, |limit| peak.sum.bytes.0 as f64 / limit.value.0.max(1) as f64)
    };
    plan.verdict.peaks.iter().max_by(|a, b| share(a).total_cmp(&share(b)))
}

fn hazard(hazard: &Hazard) -> Vec<String> {
    let mut lines =
        vec![format!("{}: {}", hazard.slug, hazard.finding), format!("  because {}", hazard.because)];
    lines.extend(
        hazard.remedies.iter().enumerate().map(|(index, remedy)| format!("  {}. {remedy}", index + 1)),
    );
    lines.push(format!("  source: {}", hazard.source));
    lines
}

/// Returns one line per phase: each group's card and the fullest node, marked if over the limit.
fn table(plan: &RunPlan) -> Vec<String> {
    let groups = &plan.ledger.cluster.groups;
    let mut header = format!("{:<14}", "");
    for group in groups {
        let _ = write!(header, " {:>24}", shortened(&format!("card: {}", group.name)));
    }
    let _ = write!(header, " {:>12} {:>12}", "node", "/dev/shm");
    let mut lines = vec![header];
    for phase in Phase::ALL.iter().filter(|phase| plan.ledger.phases.contains(phase)) {
        let mut line = format!("{:<14}", phase.name());
        for peak in plan.verdict.peaks.iter().filter(|peak| peak.phase == *phase) {
            let width = if peak.pool == Pool::Device { 24 } else { 12 };
            let limit = plan.limits.of(peak.pool);
            let mark = if limit.is_some_and(|limit| peak.sum.bytes > limit.value) { " !" } else { "" };
            let shown = format!("{}{mark}", peak.sum.bytes);
            let _ = write!(line, " {shown:>width$}");
        }
        lines.push(line);
    }
    let shown = |known: &Option<Known<Bytes>>| {
        known.as_ref().map_or("not known".into(), |known| known.value.to_string())
    };
    let mut last = format!("{:<14}", "limit");
    for _ in groups {
        let _ = write!(last, " {:>24}", shown(&plan.limits.gpu_bytes));
    }
    let _ = write!(last, " {:>12} {:>12}", shown(&plan.limits.host_bytes), shown(&plan.limits.shm_bytes));
    lines.push(last);
    lines
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= 24 { text.into() } else { text.chars().take(23).chain(['…']).collect() }
}

fn rows(plan: &RunPlan, peak: &Peak) -> Vec<String> {
    let line = |&(index, bytes): &(usize, Bytes)| {
        let item = &plan.items()[index];
        [
            format!("{:>10}  {:<12} {}: {}", bytes.to_string(), item.role, item.name, item.formula),
            format!("{:>10}  {:<12} [{}]", "", "", item.source),
        ]
    };
    let mut lines: Vec<String> = peak.sum.rows.iter().take(ROWS_SHOWN).flat_map(line).collect();
    let rest: Bytes = peak.sum.rows.iter().skip(ROWS_SHOWN).map(|&(_, bytes)| bytes).sum();
    if rest.0 > 0 {
        lines.push(format!("{:>10}  in {} smaller rows", rest.to_string(), peak.sum.rows.len() - ROWS_SHOWN));
    }
    lines
}

fn numbered(index: usize, remedy: &Remedy) -> String {
    let what = match (remedy.is_enough, remedy.frees.0) {
        (true, _) => format!(": frees {} there; the run fits then", remedy.frees),
        (false, 0) => String::new(),
        (false, _) => format!(": frees {} there; not enough alone", remedy.frees),
    };
    format!("{}. {}{what}", index + 1, remedy.words)
}

fn comparison(comparison: &Comparison) -> String {
    let reported =
        comparison.reported.map_or("no number was reported".into(), |bytes| format!("reported {bytes}"));
    format!("{}: computed {}, {reported} ({})", comparison.what, comparison.computed, comparison.source)
}

fn limit<T>(name: &str, known: Option<&Known<T>>, shown: impl Fn(&T) -> String) -> String {
    match known {
        Some(known) => format!("{name:<14} {}  ({})", shown(&known.value), known.source),
        None => format!("{name:<14} not known: not judged"),
    }
}

fn limits(plan: &RunPlan) -> Vec<String> {
    let limits = &plan.limits;
    vec![
        limit("rules of", Some(&plan.version), |version| format!("{} {version}", plan.stack.name)),
        limit("cards a node", limits.gpus.as_ref(), u64::to_string),
        limit("a card", limits.gpu_bytes.as_ref(), Bytes::to_string),
        limit("host memory", limits.host_bytes.as_ref(), Bytes::to_string),
        limit("/dev/shm", limits.shm_bytes.as_ref(), Bytes::to_string),
        limit("kernel", limits.kernel.as_ref(), |(major, minor)| format!("{major}.{minor}")),
    ]
}

fn sentence(over: &Over) -> String {
    let place = match over.peak.pool {
        Pool::Device => "a card",
        Pool::Host => "a node",
        Pool::Shm => "/dev/shm",
    };
    format!(
        "does not fit: {} needs {} of {place}, {} are allowed ({})",
        over.peak.phase.name(),
        over.peak.sum.bytes,
        over.limit,
        over.limit_source
    )
}
