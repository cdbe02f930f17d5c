//! Records before rules: messages over several lines, lists of possible causes, commands, ranks.

use plimsoll_doctor::log::{Diagnosis, Input, Limits, diagnose};
use std::io::Cursor;

fn read(text: &str) -> Diagnosis {
    let input = Input::Stream("a".into(), Box::new(Cursor::new(text.to_string().into_bytes())));
    diagnose(vec![input], Limits::default()).expect("memory can be read")
}

/// Checks (name, log, slug), of a log in the prefixes of several launchers.
fn check(cases: &[(&str, &str, &str)]) {
    let mut wrong = Vec::new();
    for (name, text, expected) in cases {
        for (dress, before) in
            [("plain", ""), ("a rank", "[rank0]: "), ("Ray", "(Worker pid=71) "), ("srun", "0: ")]
        {
            let log: String = text.lines().map(|line| format!("{before}{line}\n")).collect();
            let found = read(&log);
            if found.slug.as_deref().unwrap_or("none") != *expected {
                wrong.push(format!("{name}, {dress}: {:?} {:?}", found.slug, found.evidence.first()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const FRAMES: &str =
    "Traceback (most recent call last):\n  File \"/app/train.py\", line 3, in main\n    run(config)\n";

#[test]
fn r_a_message_below_its_exception_s_name() {
    check(&[
        (
            "indented",
            &format!(
                "{FRAMES}ValueError:\n    The size of tensor a (8) must match the size of tensor b (4)\n"
            ),
            "shapes-do-not-fit",
        ),
        (
            "a backend that is absent",
            &format!(
                "{FRAMES}ImportError: \nFooTokenizer requires the sentencepiece library but it was not found in your environment. Checkout the instructions\n"
            ),
            "package-mismatch",
        ),
        (
            "parallel sizes",
            &format!(
                "{FRAMES}megatron.core.exceptions.LayoutError:\n    Error: world size (6) is not divisible by tensor parallel size (4)\n"
            ),
            "parallel-sizes-contradict",
        ),
        (
            "dtypes",
            &format!("{FRAMES}RuntimeError:\n\n    expected scalar type Half but found Float\n"),
            "dtype-mismatch",
        ),
        (
            "a file",
            &format!("{FRAMES}OSError:\n    [Errno 28] No space left on device: '/data/out/step_3'\n"),
            "disk-full",
        ),
    ]);
    let log = format!("{FRAMES}lab.broker.BrokerError:\n    the broker of the arena lost its ledger\n");
    let found = read(&log);
    assert_eq!(found.slug.as_deref(), Some("exception-raised"));
    assert_eq!(found.evidence[0].text, "lab.broker.BrokerError: the broker of the arena lost its ledger");
    assert_eq!(found.evidence[0].line, 4);
}

#[test]
fn r_a_warning_that_a_terminal_wrapped_is_no_cause() {
    let path = "/opt/venv/lib/python3.11/site-packages/lib/a.py:12: UserWarning:";
    let long = format!("/opt/a.py:12: UserWarning: {}", "x".repeat(80 - 27));
    for warning in [
        format!("{path}\nCUDA initialization: Unexpected error: ValueError: no devices\n  warnings.warn(\n"),
        format!("{path} \n    Error: Failed to load the extension RuntimeError: x\n  warnings.warn(\n"),
        format!("{long}\nRuntimeError: Failed to load the image extension\n  warn(\n")
            .replace("RuntimeError: ", "of RuntimeError: "),
    ] {
        let found = read(&warning);
        assert_eq!(found.slug, None, "{warning}: {found:?}");
        let died = format!("{warning}{FRAMES}KeyError: 'reward'\n");
        assert_eq!(read(&died).slug.as_deref(), Some("value-missing"), "{warning}");
    }
}

#[test]
fn r_a_list_of_possible_causes_is_evidence_of_none() {
    for (log, not) in [
        (
            "RuntimeError: Either the coordinator was preempted/died/restarted unexpectedly, or this task was cut off from it.\n",
            "job-cancelled",
        ),
        (
            "ConnectionLost: the peer is gone. Possible reasons: the instance was preempted, the worker ran out of memory, or the network broke.\n",
            "job-cancelled",
        ),
        (
            "ERROR the node left the cluster. Possible causes:\n  1. the instance was preempted\n  2. the process was killed by the OOM killer\n",
            "job-cancelled",
        ),
        (
            "RuntimeError: the worker is gone. It may have been killed by signal 9 or have exited with exit code 139\n",
            "worker-segv",
        ),
        (
            "RuntimeError: the worker is gone. Common causes include SIGSEGV: segmentation violation, exit code 137, or a full disk\n",
            "worker-segv",
        ),
    ] {
        let found = read(log);
        let slug = found.slug.as_deref();
        assert!(
            slug.is_some() && slug != Some(not) && slug != Some("worker-sigkill-unknown"),
            "{log}: {found:?}"
        );
    }
    check(&[
        ("a fact", "error: the instance was preempted\n", "job-cancelled"),
        (
            "a fact, and advice",
            "error: the instance was preempted. Either start again or take another zone.\n",
            "job-cancelled",
        ),
    ]);
}

#[test]
fn r_the_program_of_a_failed_command_decides() {
    let failed = |command: &str, code: u64| {
        format!(
            "{FRAMES}subprocess.CalledProcessError: Command '{command}' returned non-zero exit status {code}.\n"
        )
    };
    check(&[
        (
            "gcc",
            &failed("['/usr/bin/gcc', '/tmp/tmp1/main.c', '-O3', '-lcuda']", 1),
            "extension-build-failed",
        ),
        (
            "a cross compiler",
            &failed("['x86_64-linux-gnu-g++-12', '-c', 'a.cpp']", 1),
            "extension-build-failed",
        ),
        ("nvcc in a shell", &failed("cd /tmp/k && nvcc -c k.cu", 2), "extension-build-failed"),
        ("a compiler that is looked for", &failed("['which', 'c++']", 1), "extension-build-failed"),
        ("git", &failed("['git', 'clone', 'https://git.example.org/a']", 128), "process-failed"),
        ("a training script", &failed("['/opt/venv/bin/python', 'train.py']", 1), "process-failed"),
    ]);
    let found = read(&failed("['git', 'clone', 'https://git.example.org/a']", 128));
    assert!(found.reasons[0].contains("`git`") && found.first_steps[0].contains("`git`"), "{found:?}");
    let found = read(&failed("['/opt/venv/bin/python', 'train.py']", 1));
    assert!(!found.reasons.iter().any(|reason| reason.contains("program that failed")), "{found:?}");
}

#[test]
fn r_on_one_line_the_specific_class_wins() {
    let log = "/usr/bin/ld: cannot find -lcudart: No such file or directory\ncollect2: error: ld returned 1 exit status\n";
    let found = read(log);
    assert_eq!(found.slug.as_deref(), Some("extension-build-failed"), "{found:?}");
    assert!(found.reasons.iter().any(|reason| reason.contains("cudart")), "{found:?}");
    assert!(found.follows.is_empty(), "{found:?}");
    check(&[
        (
            "a header",
            "/tmp/k.cu:3:10: fatal error: cutlass/cutlass.h: No such file or directory\n",
            "extension-build-failed",
        ),
        ("a file", "tar: data.tar: Cannot open: No such file or directory\n", "file-missing"),
    ]);
}

#[test]
fn r_a_container_that_waits() {
    let says = |why: &str| {
        format!(
            "Error from server (BadRequest): container \"trainer\" in pod \"rl-0\" is waiting to start: {why}\n"
        )
    };
    check(&[
        ("an image", &says("trying and failing to pull image"), "container-not-started"),
        ("an image that is not there", &says("image can't be pulled"), "container-not-started"),
        ("a volume", &says("ContainerCreating"), "container-not-started"),
        (
            "described",
            "    State:          Waiting\n      Reason:       CreateContainerConfigError\n",
            "container-not-started",
        ),
    ]);
    assert!(read(&says("trying and failing to pull image")).reasons[0].contains("pull image"));
}

#[test]
fn r_a_time_limit_that_a_terminal_wrapped() {
    let found = read(
        "slurmstepd: error: *** JOB 4711 ON node7 CANCELLED AT 2026-03-02T10:00:00 DUE TO TIME\n LIMIT ***\n",
    );
    assert_eq!(found.slug.as_deref(), Some("job-cancelled"), "{found:?}");
    assert!(found.reasons.iter().any(|reason| reason.contains("TIME")), "{found:?}");
}

#[test]
fn r_settings_refused_in_a_validator_s_words() {
    check(&[
        (
            "an extra field",
            "actor.optimzer\n  Extra inputs are not permitted [type=extra_forbidden, input_value='adam', input_type=str]\n",
            "settings-refused",
        ),
        (
            "a field",
            "trainer.steps\n  Field required [type=missing, input_value={}, input_type=dict]\n",
            "settings-refused",
        ),
        (
            "a value",
            "lr\n  Input should be a valid number, unable to parse string as a number [type=float_parsing, input_value='x', input_type=str]\n",
            "settings-refused",
        ),
    ]);
}

/// A rank that wrote something is not silent, whatever prefix the log has.
#[test]
fn r_ranks_are_silent_only_without_a_line() {
    let watchdog = |rank: u64| {
        format!(
            "{rank}: [E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600032 milliseconds before timing out.\n"
        )
    };
    let loading: String =
        (0..24).filter(|n| n % 4 != 1).map(|n| format!("{}: loading part {n}\n", n % 4)).collect();
    let found = read(&(loading + &watchdog(0) + &watchdog(3)));
    assert_eq!(found.slug.as_deref(), Some("nccl-timeout-secondary"));
    let reasons = found.reasons.join("; ");
    assert!(reasons.contains("silent: rank 1;") && reasons.contains("rank 2 writes lines"), "{reasons}");
}

#[test]
fn r_the_library_of_a_signal_is_not_its_handler_s() {
    let found = read(
        "Fatal Python error: Segmentation fault\n  /lib/x86_64-linux-gnu/libpthread.so.0(+0x14420) [0x7f]\n  /opt/lib/libkernels.so(_ZN1aEv+0x3) [0x7f]\n",
    );
    assert_eq!(found.slug.as_deref(), Some("worker-segv"));
    assert!(found.reasons.iter().any(|reason| reason.contains("libkernels.so")), "{found:?}");
}

#[test]
fn r_nccl_s_own_words_below_its_error() {
    let found = read(
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'initialization error'\n",
    );
    assert_eq!(found.slug.as_deref(), Some("nccl-failed"), "{found:?}");
    assert!(found.reasons.iter().any(|reason| reason.contains("initialization error")), "{found:?}");
}
