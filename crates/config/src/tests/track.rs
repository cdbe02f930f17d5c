//! `[track]`: what it takes and what it refuses.

use super::*;

#[test]
fn trackers_are_off_until_they_are_named() {
    let run = load_text(GOOD, &[], &[]).unwrap().run;
    assert_eq!((run.track.to.len(), run.track.memory()), (0, plimsoll_base::Bytes(0)));
    let sets = ["track.to=[\"wandb\", \"tensorboard\"]", "track.mode=offline", "track.name=a b"];
    let run = load_text(GOOD, &sets, &[]).unwrap().run;
    assert_eq!(run.track.to, [Tracker::Wandb, Tracker::Tensorboard]);
    assert_eq!((run.track.mode, run.track.name.as_deref()), (TrackMode::Offline, Some("a b")));
    assert_eq!(run.track.memory(), plimsoll_base::Bytes::mib(1024));
    // What the planner writes is read again.
    assert_eq!(load_text(&run.to_toml(), &[], &[]).unwrap().run, run);
}

#[test]
fn what_no_tracker_can_use_is_refused() {
    for (sets, slug, contains) in [
        (&["track.to=[\"wandbb\"]"][..], "bad-value", "did you mean \"wandb\"?"),
        (&["track.to=wandb"], "bad-type", "track.to"),
        (&["track.to=[\"wandb\", \"wandb\"]"], "bad-value", "twice"),
        (&["track.mode=offlin"], "bad-value", "did you mean \"offline\"?"),
        (&["track.project="], "bad-value", "track.project"),
        (&["track.name=../../x"], "bad-value", "make no path"),
        (&["track.uri=https://me:secret@host/x"], "bad-value", "MLFLOW_TRACKING_PASSWORD"),
        (&["track.worker_memory=1MiB"], "bad-value", "256MiB or more"),
        (&["track.timeout_ms=0"], "bad-value", "track.timeout_ms"),
        (&["track.api_key=x"], "unknown-key", "track.api_key"),
        (&["train.report_to=wandb"], "unknown-key", "set `track.to`"),
    ] {
        let error = load_text(GOOD, sets, &[]).expect_err(&format!("{sets:?}"));
        assert_eq!((error.slug, error.exit), (slug, Exit::Usage), "{sets:?}: {error}");
        assert!(error.to_string().contains(contains), "{sets:?} lacks {contains}: {error}");
        assert!(!error.hints.is_empty(), "{sets:?}: {error}");
    }
    assert!(load_text(GOOD, &["track.uri=https://host/a@b"], &[]).is_ok());
}
