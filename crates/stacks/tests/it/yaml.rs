//! YAML of other frameworks as a reader of YAML has it: texts of several lines, brackets over lines, and what is
//! refused by its line because half of a file would be another job.

use plimsoll_base::Result;
use plimsoll_stacks::{Setting, find, settings};

fn read(stack: &str, name: &str, text: &str) -> Result<Vec<Setting>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    settings(find(stack).expect("a stack"), &path)
}

fn shown(settings: &[Setting]) -> Vec<String> {
    settings.iter().map(|one| format!("{} {} = {}", one.line, one.key, one.value)).collect()
}

/// Their second lines were read as settings of their own: a prompt could set the learning rate.
#[test]
fn r_lines_of_a_text_were_settings() {
    let text = "model_name_or_path: a/b\nchat_template: |\n  learning_rate: 3\n  max_steps: 5\nnum_generations: 2\n\
                run_name: of two\n  lines\nreward_funcs: [a,\n  b]   # two\n";
    let given = read("trl", "x.yaml", text).expect(text);
    assert_eq!(
        shown(&given).iter().filter(|line| !line.contains("trainer =")).collect::<Vec<_>>(),
        [
            "1 model_name_or_path = a/b",
            "2 chat_template = learning_rate: 3\nmax_steps: 5\n",
            "5 num_generations = 2",
            "6 run_name = of two lines",
            "8 reward_funcs = [a, b]",
        ]
    );
}

/// Shows that what follows an anchor was taken out of its section, and an alias was a text.
#[test]
fn r_half_of_a_file_was_read() {
    for (text, words) in [
        (
            "defaults: &d\n  beta: 0.1\nmodel_name_or_path: a/b\nnum_generations: 2\nmore: *d\n",
            "line 1: anchors",
        ),
        ("model_name_or_path: a/b\nnum_generations: !!int \"2\"\n", "line 2: tags"),
        ("model_name_or_path: a/b\nnum_generations: 2\n\tbeta: hunter2\n", "line 2: "),
        ("model_name_or_path: a/b\n- hunter2\nnum_generations: 2\n", "line 2: "),
    ] {
        for name in ["x.yaml", "X.YML"] {
            let error = read("trl", name, text).expect_err(text);
            assert!(
                error.slug == "import-unreadable" && error.to_string().contains(words),
                "{text}: {error}"
            );
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        // Another file is none of this stack, whatever its text.
        let error = read("trl", "x.txt", text).expect_err(text);
        assert_eq!(error.slug, "import-nothing-found", "{text}");
    }
}

#[test]
fn lists_of_tables_have_numbers_in_every_form() {
    let sets = |sets: &str| format!("base_model: a/b\ndatasets:\n{sets}learning_rate: 1e-5\n");
    let given = |text: &str| {
        let given = read("axolotl", "x.yml", &sets(text)).expect(text);
        let words = given.iter().map(|one| format!("{} = {}", one.key, one.value));
        words.collect::<Vec<_>>()
    };
    let expect = given("  - path: o/n\n    type: alpaca\n");
    assert!(expect.iter().any(|line| line.starts_with("datasets = [\"hf:o/n")), "{expect:?}");
    for form in [
        "- path: o/n\n  type: alpaca\n",
        "  - {path: o/n, type: alpaca}\n",
        "  -\n    type: alpaca\n    path: \"o/n\"\n",
    ] {
        assert_eq!(given(form), expect, "{form}");
    }
}
