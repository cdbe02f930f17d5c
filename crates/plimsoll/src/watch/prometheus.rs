//! The numbers of all runs in the text format of Prometheus, with the run's name as a label.

use super::live::Runs;
use plimsoll_base::visible;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Writes one gauge for each metric: `plimsoll_reward{run="first"} 0.9`.
pub fn text(runs: &Runs) -> String {
    let mut gauges: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    for run in runs.each() {
        for (name, value) in run.gauges() {
            if let Some(value) = value.as_f64() {
                let of = gauges.entry(metric(&name)).or_default();
                // Two names may become one; a label may occur once.
                if of.last().is_none_or(|(known, _)| *known != run.name) {
                    of.push((run.name.clone(), value));
                }
            }
        }
    }
    let mut out = String::new();
    for (name, values) in gauges {
        let _ = writeln!(out, "# TYPE {name} gauge");
        for (run, value) in values {
            let _ = writeln!(out, "{name}{{run=\"{}\"}} {value}", label(&run));
        }
    }
    out
}

fn metric(name: &str) -> String {
    let plain = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    format!("plimsoll_{}", plain.collect::<String>())
}

fn label(text: &str) -> String {
    visible(text).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_labels_are_those_of_the_format() {
        assert_eq!(metric("completions/mean_length"), "plimsoll_completions_mean_length");
        assert_eq!(metric("rewards/é\"{}\n/x"), "plimsoll_rewards_______x");
        assert_eq!(label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
