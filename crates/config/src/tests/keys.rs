//! The rows of keys.

use super::*;
use std::collections::BTreeSet;

#[test]
fn the_schema_lists_every_section() {
    let schema = json_schema();
    assert!(
        schema["properties"]["rollout"].is_object()
            && schema["$defs"]["Rollout"]["properties"]["top_p"].is_object()
    );
    let keys = keys();
    for key in ["method", "rollout.group_size", "reward.kind", "critic.value_clip", "memory.host"] {
        assert!(keys.iter().any(|known| known == key), "{key} in {keys:?}");
    }
}

#[test]
fn every_key_of_a_section_has_a_row() {
    // A section that is not among the rows would have keys that nothing is known of.
    let keys = keys();
    let rows: BTreeSet<&str> = sections::rows().map(|row| row.path).collect();
    let of_sections = keys.iter().map(String::as_str).filter(|key| key.contains('.'));
    assert_eq!(of_sections.collect::<BTreeSet<_>>(), rows);
}

#[test]
fn a_row_says_what_a_resumed_run_may_change() {
    for (key, how) in [
        ("train.learning_rate", Resumes::Never),
        ("reward.3.workers", Resumes::Freely),
        ("run.device", Resumes::Replanned),
        ("lora.merge", Resumes::Stored),
        ("seed", Resumes::Never),
        ("data.template_args.x", Resumes::Never),
    ] {
        assert_eq!(resumes(key), how, "{key}");
    }
    let freely = resumes_freely();
    for key in ["memory.*", "checkpoint.*", "track.*", "train.steps", "reward.*.workers"] {
        assert!(freely.iter().any(|free| free == key), "{key} in {freely:?}");
    }
}

#[test]
fn a_key_is_described_by_its_row() {
    let page = describe("rollout.group_size").unwrap();
    assert_eq!(describe("rollout.num_generations"), Some(page.clone()));
    let text = page.text();
    for line in [
        "rollout.group_size\n\nSamples a prompt.\n\n  default       8\n  takes         a whole number of at least 1\n",
        "  on resume     stays as the run began\n",
        "  also read as  rollout.num_generations, rollout.n, rollout.n_samples_per_prompt\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert!(describe("train.learning_rate").unwrap().text().contains("none: it must be given"));
    assert!(describe("data.train_batch_size").unwrap().key == "rollout.prompts_per_step");
    assert!(describe("memory.host").unwrap().text().contains("no bit depends on it"));
    assert!(describe("no-such").is_none() && describe("rollout").is_none());
    // Keys above the sections, and those of environment files, were not known.
    let text = |key: &str| describe(key).unwrap_or_else(|| panic!("{key}")).text();
    assert!(text("seed").contains("  default       0\n") && text("seed").contains("on resume     stays"));
    assert!(text("method").contains("none: it must be given"));
    assert!(
        text("env").starts_with("env\n\nA native environment") && !text("num_envs").contains("on resume")
    );
    assert!(text("run.format").contains("default"));
    // Nothing is empty, whatever key is asked for.
    for row in sections::rows() {
        let page = describe(row.path).expect(row.path);
        assert!(page.meaning.ends_with(['.', ']']) && page.key == row.path, "{page:?}");
    }
}

/// The hint was `--set train=VALUE`.
#[test]
fn r_a_missing_section_is_no_value_to_set() {
    let text = GOOD.split("[train]").next().expect("what is before it");
    let error = load_text(text, &[], &[]).unwrap_err();
    assert!(error.slug == "missing-key" && !error.to_string().contains("--set"), "{error}");
    let error = load_text(&GOOD.replace("model = ", "# "), &[], &[]).unwrap_err().to_string();
    assert!(error.contains("`--set model=VALUE` does it too"), "{error}");
}

/// A size that no number of TOML holds was an internal error.
#[test]
fn r_a_size_beyond_the_numbers_of_toml_ended_in_a_panic() {
    let most = u64::MAX.to_string();
    let run = load_text(GOOD, &[&format!("memory.host=\"{most}\"")], &[]).unwrap().run;
    assert_eq!(run.memory.host, Auto::Value(ByteSize(plimsoll_base::Bytes(u64::MAX))));
    assert_eq!(toml::from_str::<RunFile>(&run.to_toml()).unwrap(), run);
}
