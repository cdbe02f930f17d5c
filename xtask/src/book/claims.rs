//! Compares what the README and the book's main path say of models with docs/models.md, and that page with the table
//! of families in the code: the names of families and their number, what layers may have, and what is refused.

use super::main_path::pages;
use crate::{finding::Finding, tree::Tree};

const MODELS: &str = "docs/models.md";
/// Where the families are named, in a call of `names!`.
const FAMILIES: &str = "crates/arch/src/architecture.rs";
/// The page that lists every family in a sentence, and how the sentence begins.
const LIST: (&str, &str) = ("docs/own-model.md", "Supported are");
/// Pages that are read first, in addition to the main path.
const FIRST: [&str; 2] = ["README.md", "crates/python/README.md"];

/// A part that a model may have: the words of docs/models.md that say so, and words that say it is so and that it is
/// not.
struct Part {
    what: &'static str,
    said_by: &'static str,
    claims: &'static [&'static str],
    denials: &'static [&'static str],
}

const PARTS: [Part; 6] = [
    Part {
        what: "experts",
        said_by: "feed-forward parts of experts",
        claims: &["with experts", "mixture of experts", "experts are trained"],
        denials: &[
            "no experts",
            "without experts",
            "dense decoders only",
            "only dense",
            "models are dense",
            "dense models only",
        ],
    },
    Part {
        what: "linear attention",
        said_by: "linear attention in",
        claims: &["linear attention"],
        denials: &["no linear attention", "without linear attention", "only softmax attention"],
    },
    Part {
        what: "adapters",
        said_by: "trains on several ranks and with [adapters]",
        claims: &["adapters of rank", "low-rank adapters"],
        denials: &["no adapters", "without adapters", "no lora", "full fine-tuning only"],
    },
    Part {
        what: "several ranks",
        said_by: "trains on several ranks",
        claims: &["several ranks"],
        denials: &["one process only", "one card only", "a single process", "no data parallel"],
    },
    Part {
        what: "GGUF files",
        said_by: "GGUF files are read and written",
        claims: &["as gguf", "a gguf file"],
        denials: &["no gguf", "gguf is not", "gguf files are not"],
    },
    Part {
        what: "images",
        // Written on no line: the page refuses them.
        said_by: "images are read",
        claims: &["vision-language model", "trains on images", "pictures and text", "multimodal models"],
        denials: &[],
    },
];

/// Devices of the field by the words that people have for them, and the name that `run.device` would have.
const DEVICES: [(&str, &str); 7] = [
    ("AMD", "rocm"),
    ("ROCm", "rocm"),
    ("Apple", "metal"),
    ("TPU", "tpu"),
    ("Gaudi", "hpu"),
    ("Ascend", "npu"),
    ("Intel GPU", "xpu"),
];
/// Where the devices are named.
const DEVICE_NAMES: &str = "crates/config/src/values.rs";

/// Families of the field, as people write them. One that docs/models.md has no row for may be named only as refused.
const NAMES: [&str; 16] = [
    "Mixtral",
    "DeepSeek",
    "gpt-oss",
    "Qwen3-Next",
    "OLMoE",
    "Falcon",
    "GPT-NeoX",
    "Pythia",
    "Mamba",
    "Kimi",
    "MiniMax",
    "Cohere",
    "Llama 4",
    "Gemma 4",
    "LFM2",
    "GLM-4",
];
/// Words of a sentence that names what is not supported.
const REFUSED: [&str; 6] = ["refused", "not ", "no ", "planned", "unsupported", "other than"];

const WORDS: [&str; 20] = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(models) = tree.text(MODELS) else { return Vec::new() };
    let rows = rows(models);
    let mut findings = of_code(tree, &rows);
    let main = pages(tree).into_iter().filter(|page| page != MODELS);
    let truth = Truth {
        models: models.split_whitespace().collect::<Vec<_>>().join(" "),
        devices: tree.text(DEVICE_NAMES).unwrap_or_default(),
        rows: &rows,
    };
    for page in FIRST.iter().map(ToString::to_string).chain(main) {
        let Some(text) = tree.text(&page) else { continue };
        for (line, sentence) in sentences(text) {
            let messages = truth.contradictions(&sentence);
            findings.extend(messages.into_iter().map(|message| Finding::new(&page, line, message)));
        }
    }
    findings.extend(of_list(tree, &rows));
    findings
}

/// Requires that the page of own models lists the names of all families.
fn of_list(tree: &Tree, rows: &[Row]) -> Vec<Finding> {
    let Some(text) = tree.text(LIST.0) else { return Vec::new() };
    let Some((line, list)) = sentences(text).into_iter().find(|(_, sentence)| sentence.starts_with(LIST.1))
    else {
        return vec![Finding::new(
            LIST.0,
            1,
            format!("no sentence begins with `{}` and lists the families", LIST.1),
        )];
    };
    let left = rows.iter().flat_map(Row::names).filter(|name| !list.contains(*name));
    let message = |name| format!("the list of families has no `{name}`, and {MODELS} does");
    left.map(|name| Finding::new(LIST.0, line, message(name))).collect()
}

/// The facts that pages are compared with.
struct Truth<'t> {
    /// The text of docs/models.md on one line.
    models: String,
    devices: &'t str,
    rows: &'t [Row],
}

/// A family: its cell of names, and its `model_type`s.
struct Row {
    line: usize,
    cell: String,
    types: Vec<String>,
}

impl Row {
    /// Returns the names that people know: `Llama 2`, `Qwen3-MoE`, without what follows a colon or a semicolon.
    fn names(&self) -> impl Iterator<Item = &str> {
        let cell = self.cell.split([':', ';']).next().unwrap_or_default();
        let qualifiers = ["dense", "text"];
        cell.split(',').map(str::trim).filter(move |name| !qualifiers.contains(name))
    }
}

/// Reads the table of families.
fn rows(models: &str) -> Vec<Row> {
    let lines = models.lines().enumerate().skip_while(|(_, line)| !line.starts_with("| family |")).skip(2);
    let table = lines.take_while(|(_, line)| line.starts_with('|'));
    table
        .map(|(index, line)| {
            let mut cells = line.split('|').skip(1);
            let mut cell = || cells.next().unwrap_or_default().trim();
            let name = cell().to_string();
            let types = cell().split(',').map(|name| name.trim().trim_matches('`').to_string()).collect();
            Row { line: index + 1, cell: name, types }
        })
        .collect()
}

/// Compares the table with the families of the code.
fn of_code(tree: &Tree, rows: &[Row]) -> Vec<Finding> {
    let Some(code) = tree.text(FAMILIES) else { return Vec::new() };
    let names =
        code.split("Family {").nth(1).and_then(|rest| rest.split("    }\n").next()).unwrap_or_default();
    let families: Vec<&str> =
        names.split(" = \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let mut findings = Vec::new();
    for family in &families {
        let count = rows.iter().filter(|row| row.types.iter().any(|name| name == family)).count();
        if count != 1 {
            let message = format!("the family `{family}` of {FAMILIES} has {count} rows, and must have one");
            findings.push(Finding::new(MODELS, rows.first().map_or(1, |row| row.line), message));
        }
    }
    let is_known = |row: &&Row| row.types.iter().any(|name| families.contains(&name.as_str()));
    findings.extend(rows.iter().filter(|row| !is_known(row)).map(|row| {
        Finding::new(MODELS, row.line, format!("`{}` is no family of {FAMILIES}", row.types.join(", ")))
    }));
    findings
}

/// Returns the sentences of prose with the line on which their paragraph begins. A list's items and a table's rows are
/// paragraphs; what fences hold is none.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let (mut paragraphs, mut is_fenced): (Vec<(usize, String)>, bool) = (Vec::new(), false);
    let mut goes_on = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let is_fence = line.starts_with("```");
        is_fenced ^= is_fence;
        if is_fenced || is_fence || line.is_empty() {
            goes_on = false;
            continue;
        }
        let is_start = line.starts_with(['*', '-', '|', '#', '>']) && !line.starts_with("**");
        match paragraphs.last_mut().filter(|_| goes_on && !is_start) {
            Some((_, paragraph)) => *paragraph += &format!(" {line}"),
            None => paragraphs.push((index + 1, line.trim_start_matches(['*', '-', ' ']).to_string())),
        }
        goes_on = true;
    }
    let split = |(line, text): (usize, String)| {
        let parts: Vec<String> =
            text.split(". ").flat_map(|part| part.split("; ")).map(str::to_string).collect();
        parts.into_iter().map(move |part| (line, part))
    };
    paragraphs.into_iter().flat_map(split).collect()
}

impl Truth<'_> {
    /// Returns what a sentence says and the truth does not.
    fn contradictions(&self, sentence: &str) -> Vec<String> {
        let small = sentence.to_lowercase();
        let is_refusal = REFUSED.iter().any(|word| small.contains(word));
        let mut found = Vec::new();
        let rows = self.rows.len();
        if let Some((said, count)) = families_counted(&small).filter(|(_, count)| *count != rows) {
            found.push(format!("says {said} families ({count}), and {MODELS} has {rows}"));
        }
        for part in &PARTS {
            let is_there = self.models.contains(part.said_by);
            let words = if is_there { part.denials } else { part.claims };
            let word = words.iter().find(|word| small.contains(**word)).filter(|_| is_there || !is_refusal);
            let is = if is_there { "are built" } else { "are not" };
            found.extend(word.map(|word| format!("says `{word}`, and by {MODELS} {} {is}", part.what)));
        }
        let is_family = |name: &str| self.rows.iter().any(|row| row.cell.contains(name));
        for name in NAMES.iter().filter(|name| !is_refusal && sentence.contains(**name) && !is_family(name)) {
            found.push(format!(
                "names {name}, which has no row in {MODELS}, without saying that it is refused"
            ));
        }
        let is_device = |name: &str| self.devices.contains(&format!("= \"{name}\""));
        for (word, name) in
            DEVICES.iter().filter(|(word, name)| !is_refusal && sentence.contains(word) && !is_device(name))
        {
            found.push(format!("names {word}, and no `run.device` is {name}"));
        }
        found
    }
}

/// Returns the number that a sentence has of (model) families, as it is written and as a number.
fn families_counted(small: &str) -> Option<(&str, usize)> {
    let words: Vec<&str> =
        small.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let at = words.iter().position(|word| *word == "families")?;
    let before = match words.get(at.checked_sub(1)?) {
        Some(&"model") => at.checked_sub(2)?,
        _ => at - 1,
    };
    let word = words[before];
    let count =
        word.parse().ok().or_else(|| WORDS.iter().position(|other| *other == word).map(|at| at + 1))?;
    Some((word, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    const PAGE: &str = "# Models\n\nIt trains on several ranks and with\n[adapters](lora.md).\n\n| family | `model_type` | beyond |\n|---|---|---|\n\
                        | Llama 2, Llama 3 | `llama` | |\n| Qwen3-MoE: 30B | `qwen3_moe` | feed-forward parts of experts |\n\n\
                        ## What is refused\n\nMixtral, encoders and images. GGUF files are read and written.\n";
    const CODE: &str = "names! {\n    /// Families.\n    Family {\n        Llama = \"llama\",\n        Qwen3Moe = \"qwen3_moe\",\n    }\n}\n\
                        const OTHER: &str = \"other\";\n";

    fn found(readme: &str, models: &str, code: &str, list: &str) -> Vec<String> {
        let summary = "- [Own](own-model.md)\n- [Models](models.md)\n\n# Appendix\n";
        let files = [
            ("README.md", readme),
            (MODELS, models),
            (FAMILIES, code),
            (LIST.0, list),
            ("docs/SUMMARY.md", summary),
        ];
        check(&tree(&files)).iter().map(ToString::to_string).collect()
    }

    const LISTED: &str = "Supported are Llama 2, Llama 3 and Qwen3-MoE. No others.\n";

    #[test]
    fn a_readme_that_agrees_is_silent() {
        let readme = "Text only: no images.\n\n* Two families, Mixtral is refused; adapters of rank 8.\n\n```\nno experts\n```\n\nExperts, and 2 model\nfamilies.\n";
        assert_eq!(found(readme, PAGE, CODE, LISTED), [""; 0]);
    }

    #[test]
    fn what_the_page_of_models_contradicts_is_found_by_its_line() {
        for (readme, words) in [
            (
                "# A\n\nIt knows 13 families.\n",
                "README.md:3: says 13 families (13), and docs/models.md has 2",
            ),
            ("Three model families.\n", "README.md:1: says three families"),
            ("Models are dense decoders.\n", "`models are dense`, and by docs/models.md experts are built"),
            ("There are no adapters.\n", "adapters are built"),
            ("One,\nand no GGUF.\n", "GGUF files are built"),
            ("It trains on images.\n", "images are not"),
            ("It trains Mixtral too.\n", "names Mixtral"),
            ("It runs on ROCm.\n", "no `run.device` is rocm"),
        ] {
            let found = found(readme, PAGE, CODE, LISTED);
            assert!(found.len() == 1 && found[0].contains(words), "{readme}: {found:?}");
        }
        let without = PAGE.replace("feed-forward parts of experts", "");
        assert!(
            found("A mixture of experts is trained.\n", &without, CODE, LISTED)[0]
                .contains("experts are not")
        );
    }

    #[test]
    fn the_page_of_models_has_the_families_of_the_code() {
        let more = CODE.replace("Qwen3Moe", "Phi3 = \"phi3\",\n        Qwen3Moe");
        let missing = found("", PAGE, &more, LISTED);
        assert!(missing.len() == 1 && missing[0].contains("the family `phi3`"), "{missing:?}");
        let less = CODE.replace("        Llama = \"llama\",\n", "");
        let unknown = found("", PAGE, &less, LISTED);
        assert!(
            unknown.len() == 1 && unknown[0].starts_with("docs/models.md:8: `llama` is no family"),
            "{unknown:?}"
        );
        assert_eq!(found("", PAGE, CODE, "# Own\n").len(), 1, "the list is gone");
        let short = found("", PAGE, CODE, "Supported are Llama 2 and Qwen3-MoE.\n");
        assert!(short.len() == 1 && short[0].contains("has no `Llama 3`"), "{short:?}");
    }
}
