//! Keys of tasks in containers.

use super::{EPISODES, load_text};

#[test]
fn tasks_in_containers_have_a_folder_an_engine_and_a_limit() {
    let tasks = ["environment.env=harbor", "environment.rows=tasks", "data.prompt_tokens_max=64"];
    let more = ["environment.engine=podman --remote", "environment.container_memory=1GiB"];
    let run = load_text(EPISODES, &[&tasks[..], &more].concat(), &[]).unwrap().run;
    let environment = run.environment.as_ref().unwrap();
    assert_eq!(
        (environment.row_files().count(), environment.task_folders().collect::<Vec<_>>()),
        (0, vec!["tasks"])
    );
    let settings = environment.host_settings(&run.data).tasks;
    assert_eq!((settings.folders.len(), settings.memory), (1, plimsoll_base::Bytes::mib(1024)));
    assert_eq!(settings.engine.as_deref(), Some("podman --remote"));
    for (sets, slug, contains) in [
        (&["environment.env=harbor", tasks[2]][..], "missing-key", "the folder with the tasks"),
        (&["environment.engine=podman"], "contradictory-keys", "it belongs to env = \"harbor\""),
        (&["environment.container_memory=1GiB"], "contradictory-keys", "it belongs to env = \"harbor\""),
        (&[tasks[0], tasks[1], tasks[2], "environment.container_memory=0"], "bad-value", "a number above 0"),
    ] {
        let error = load_text(EPISODES, sets, &[]).expect_err(&format!("{sets:?}"));
        assert!(error.slug == slug && error.to_string().contains(contains), "{sets:?}: {error}");
    }
}
