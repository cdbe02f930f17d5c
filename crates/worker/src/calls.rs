//! System call numbers, per architecture, of calls that workers may not make freely.

/// Stands for a call that this architecture lacks.
pub(crate) const NO_CALL: u32 = u32::MAX;

macro_rules! calls {
    ($($name:ident $x86_64:expr, $aarch64:expr;)*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            pub(crate) const $name: u32 = $x86_64;
            #[cfg(not(target_arch = "x86_64"))]
            pub(crate) const $name: u32 = $aarch64;
        )*
    };
}

/// The kernel's number of this architecture; `None` if the table lacks its calls.
pub(crate) const MACHINE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};

calls! {
    // Signals.
    KILL 62, 129;
    TKILL 200, 130;
    TGKILL 234, 131;
    RT_SIGQUEUEINFO 129, 138;
    RT_TGSIGQUEUEINFO 297, 240;
    PIDFD_SEND_SIGNAL 424, 424;
    // Other processes.
    PIDFD_OPEN 434, 434;
    PIDFD_GETFD 438, 438;
    PTRACE 101, 117;
    PROCESS_VM_READV 310, 270;
    PROCESS_VM_WRITEV 311, 271;
    PRLIMIT64 302, 261;
    SETPRIORITY 141, 140;
    IOPRIO_SET 251, 30;
    SCHED_SETPARAM 142, 118;
    SCHED_SETSCHEDULER 144, 119;
    SCHED_SETAFFINITY 203, 122;
    SCHED_SETATTR 314, 274;
    MIGRATE_PAGES 256, 238;
    MOVE_PAGES 279, 239;
    // Its own processes and namespaces.
    CLONE 56, 220;
    FORK 57, NO_CALL;
    VFORK 58, NO_CALL;
    CLONE3 435, 435;
    UNSHARE 272, 97;
    SETNS 308, 268;
    // Objects that outlive processes.
    SHMGET 29, 194;
    SEMGET 64, 190;
    MSGGET 68, 186;
    MQ_OPEN 240, 180;
    ADD_KEY 248, 217;
    REQUEST_KEY 249, 218;
    KEYCTL 250, 219;
    MEMFD_CREATE 319, 279;
    MEMFD_SECRET 447, 447;
    // Descriptors.
    SOCKET 41, 198;
    IOCTL 16, 29;
    FCNTL 72, 25;
    IO_URING_SETUP 425, 425;
    PERF_EVENT_OPEN 298, 241;
    BPF 321, 280;
    USERFAULTFD 323, 282;
    OPEN_BY_HANDLE_AT 304, 265;
    // Attributes of files.
    CHMOD 90, NO_CALL;
    FCHMOD 91, 52;
    FCHMODAT 268, 53;
    FCHMODAT2 452, 452;
    CHOWN 92, NO_CALL;
    FCHOWN 93, 55;
    LCHOWN 94, NO_CALL;
    FCHOWNAT 260, 54;
    UTIME 132, NO_CALL;
    UTIMES 235, NO_CALL;
    FUTIMESAT 261, NO_CALL;
    UTIMENSAT 280, 88;
    SETXATTR 188, 5;
    LSETXATTR 189, 6;
    FSETXATTR 190, 7;
    REMOVEXATTR 197, 14;
    LREMOVEXATTR 198, 15;
    FREMOVEXATTR 199, 16;
    SETXATTRAT 463, 463;
    REMOVEXATTRAT 466, 466;
    FILE_SETATTR 469, 469;
}
