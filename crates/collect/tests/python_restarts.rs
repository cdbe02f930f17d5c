//! A worker that is killed again and again leaves no descriptor, no memory and no process. Alone in its program, for it
//! counts what the whole process holds. `PLIMSOLL_RESTARTS=1000` for the long version.

mod common;

use common::{Driver, envs, is_gone, python};
use plimsoll_worker::procs;
use serde_json::json;

#[test]
fn restarts_leave_nothing_behind() {
    let Some(python) = python() else { return };
    let restarts: usize = std::env::var("PLIMSOLL_RESTARTS").ok().and_then(|n| n.parse().ok()).unwrap_or(30);
    let mut one = envs(&python, "Count", json!({}), 2, 1);
    one.restarts_max = u32::MAX;
    one.workers_alive_min = 0.0;
    let mut driver = Driver::start(one).unwrap();
    let kill_one = |driver: &mut Driver| {
        let pid = driver.stepper.pids()[0] as i32;
        let pid = rustix::process::Pid::from_raw(pid).expect("a process has a number");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        driver.steps(2).unwrap();
        pid.as_raw_nonzero().get() as u32
    };
    // What is set up once is set up by now.
    for _ in 0..3 {
        kill_one(&mut driver);
    }
    let held = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        (fds, maps.lines().filter(|line| line.contains("plimsoll-env-slots")).count())
    };
    let before = (least(&held), plimsoll_memory::host::Host::this().rss().anon);
    let mut lost = driver.aborted();
    let pids: Vec<u32> = (0..restarts).map(|_| kill_one(&mut driver)).collect();
    // The thread that watches workers may be looking at /proc just now, for which it takes a descriptor or two: one
    // reading that equals the one before is enough, and it is not read again.
    let after = |_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        held()
    };
    assert_eq!((0..1000).map(after).find(|after| *after == before.0), Some(before.0), "now {:?}", held());
    let grown = plimsoll_memory::host::Host::this().rss().anon.0.saturating_sub(before.1.0);
    assert!(grown < 4 << 20, "{restarts} restarts took {grown} bytes");
    assert!(procs::of_sessions(&pids).is_empty() && pids.iter().all(|&pid| is_gone(pid)));
    assert_eq!(driver.faults.len(), restarts + 3);
    lost = driver.aborted() - lost;
    println!(
        "{restarts} restarts: {lost} frames lost, {grown} bytes grown, {:?} descriptors and mappings",
        before.0
    );
    // Two environments a worker, each of which may lose the step in flight and no more.
    assert!(lost <= 2 * restarts, "{lost} frames lost");
}

/// The least of some readings: another thread takes a descriptor now and then.
fn least(held: &dyn Fn() -> (usize, usize)) -> (usize, usize) {
    let readings = (0..50).map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        held()
    });
    readings.min().expect("there are some")
}
