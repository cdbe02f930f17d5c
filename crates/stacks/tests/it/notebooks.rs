//! Notebooks: their code cells are read as one script, messages name cells, and what is no notebook is named.

use plimsoll_base::{Error, Result};
use plimsoll_stacks::{Imported, Wishes, find, import};
use serde_json::json;

/// A notebook whose cells are code, but for those that begin with `#!`.
fn notebook(cells: &[&str]) -> String {
    let one = |source: &&str| match source.strip_prefix("#!") {
        Some(text) => json!({"cell_type": "markdown", "metadata": {}, "source": [text]}),
        None => {
            let lines: Vec<&str> = source.split_inclusive('\n').collect();
            json!({"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": null, "source": lines})
        }
    };
    let cells: Vec<_> = cells.iter().map(one).collect();
    json!({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).to_string()
}

fn imported(stack: &str, text: &str) -> Result<Imported> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.ipynb");
    std::fs::write(&path, text).expect("a file");
    import(find(stack).expect("a stack"), &path, &Wishes::default())
}

fn refused(stack: &str, text: &str) -> Error {
    imported(stack, text).expect_err(text)
}

const TRAINED: [&str; 6] = [
    "#!Titles are no code: GRPOTrainer(model=\"c/d\")",
    "%pip install trl \\\n  peft\n!nvidia-smi\nfrom trl import GRPOConfig, GRPOTrainer\nfrom peft import LoraConfig",
    "%%bash\naccelerate launch x.py --loss_type dr_grpo",
    "name, out = \"Qwen/Qwen2.5-0.5B\", \"runs/own\"\n\ndef own(completions, **kwargs):\n    return [0.0]\n",
    "config = GRPOConfig(output_dir=out, loss_type=\"dr_grpo\", max_steps=8)",
    "trainer = GRPOTrainer(model=name, reward_funcs=[own], args=config, train_dataset=\"rows.jsonl\",\n    peft_config=LoraConfig(r=4))",
];

#[test]
fn code_cells_are_one_script() {
    let text = notebook(&TRAINED);
    let run = imported("trl", &text).expect(&text);
    for line in [
        "method = \"grpo\"",
        "model = \"hf:Qwen/Qwen2.5-0.5B\"",
        "rank = 4",
        "dir = \"runs/own\"",
        "aggregation = \"seq_mean_token_sum_norm\"",
        "steps = 8",
        "# Imported from TRL: x.ipynb",
    ] {
        assert!(run.run_file.contains(line), "{line}: {}", run.run_file);
    }
    // The function is looked for in a file, which is not there yet.
    assert!(run.run_file.contains("/x.py:own\""), "{}", run.run_file);
    let missing =
        |line: &String| line.starts_with("missing: ") && line.contains("/x.py: Python loads no function");
    assert!(run.remarks.iter().any(missing), "{:?}", run.remarks);
    // A cell may be stored as one text.
    let whole = text.replace(
        &serde_json::to_string(&TRAINED[4].split_inclusive('\n').collect::<Vec<_>>()).expect("a list"),
        &serde_json::to_string(TRAINED[4]).expect("a text"),
    );
    assert_ne!(whole, text);
    assert_eq!(imported("trl", &whole).expect("a run file").remarks.len(), run.remarks.len());
}

#[test]
fn messages_name_the_cell_and_its_line() {
    let mut cells = TRAINED;
    cells[4] =
        "\nconfig = GRPOConfig(loss_type=\"grpo\",\n    top_entropy_quantile=0.2, use_adaptive_entropy=True)";
    let text = refused("trl", &notebook(&cells)).to_string();
    assert!(text.contains("cell 5 line 3: use_adaptive_entropy = True"), "{text}");
}

#[test]
fn what_is_no_notebook_with_a_trainer_is_named() {
    for (text, slug, words) in [
        ("import trl\n".to_string(), "import-unreadable", "is no notebook: it is not JSON"),
        ("{\"a\": 1}".into(), "import-unreadable", "it does not say its `nbformat`"),
        (
            "{\"nbformat\": 3, \"worksheets\": []}".into(),
            "import-unreadable",
            "is a notebook of nbformat 3, and 4 is read",
        ),
        ("{\"nbformat\": 4}".into(), "import-unreadable", "it has no `cells`"),
        (
            "{\"nbformat\": 4, \"cells\": [{\"cell_type\": \"code\", \"source\": 1}]}".into(),
            "import-unreadable",
            "has no text in cell 1",
        ),
        (notebook(&["print(1)"]), "import-nothing-found", "holds no trl settings"),
        (notebook(&[]), "import-nothing-found", "holds no trl settings"),
        (format!("{{\"nbformat\": 4, \"x\": \"{}\"}}", "y".repeat(1 << 20)), "import-unreadable", "1 MiB"),
    ] {
        let error = refused("trl", &text);
        let whole = error.to_string();
        assert_eq!(error.slug, slug, "{whole}");
        assert!(whole.contains(words) && whole.contains("hint: "), "{words}: {whole}");
    }
}
