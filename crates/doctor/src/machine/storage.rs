//! File systems of the run directory and of temporary files: in memory, over a network, nearly full.

use super::facts::{Check, Finding, Machine, State};
use plimsoll_base::Bytes;
use rustix::fs::{StatVfs, statfs, statvfs};
use std::path::{Path, PathBuf};

/// Weights and states of a 7B model are about 100 GB with AdamW; less than this holds no checkpoint worth having.
const RUN_FREE_MIN: u64 = 20 << 30;
/// Ray stops spilling when a file system is 95 % full.
const FULL_SHARE: f64 = 0.95;
/// Free bytes that sockets and caches need on a temporary file system.
const TEMP_FREE_MIN: u64 = 1 << 30;

pub fn checks(machine: &Machine) -> Vec<Check> {
    vec![
        Check::of("machine-run-directory", run_dir(machine)),
        Check::of("machine-temporary-directory", temp_dir(machine)),
    ]
}

/// Returns the kind of a file system, by its number in statfs(2).
fn kind(path: &Path) -> &'static str {
    let Ok(stat) = statfs(path) else { return "unknown" };
    match stat.f_type as u64 & 0xffff_ffff {
        0x0102_1994 | 0x8584_58f6 => "tmpfs",
        0x6969 => "nfs",
        0x0bd0_0bd0 => "lustre",
        0x6573_5546 => "fuse",
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => "smb",
        0x4750_4653 => "gpfs",
        0x00c3_6400 => "ceph",
        0x0102_1997 => "9p",
        0x794c_7630 => "overlay",
        0x5846_5342 => "xfs",
        0xef53 => "ext",
        0x9123_683e => "btrfs",
        0x2fc1_2fc1 => "zfs",
        _ => "another kind",
    }
}

/// Returns the folder, or its nearest ancestor that exists.
fn nearest(path: &Path) -> Option<(PathBuf, StatVfs)> {
    let absolute = std::path::absolute(path).ok()?;
    absolute.ancestors().find_map(|place| Some((place.to_path_buf(), statvfs(place).ok()?)))
}

fn run_dir(machine: &Machine) -> Finding {
    let Some((place, stat)) = nearest(&machine.run_dir) else {
        return (State::Unknown, format!("{} cannot be read", machine.run_dir.display()));
    };
    let (kind, free) = (kind(&place), Bytes(stat.f_bavail.saturating_mul(stat.f_frsize)));
    let inodes_left = stat.f_files == 0 || stat.f_favail > 1000;
    let (state, words) = match kind {
        "tmpfs" => (State::Problem, "; it is memory: each checkpoint counts against the container"),
        _ if free.0 < RUN_FREE_MIN => {
            (State::Problem, "; a checkpoint of a 7B model with its states takes about 100 GB")
        }
        _ if !inodes_left => (State::Problem, "; almost no inodes are free"),
        "overlay" => (State::Note, "; it is deleted with the container"),
        "nfs" | "lustre" | "fuse" | "smb" | "gpfs" | "ceph" | "9p" => {
            (State::Note, "; over a network: a save may stall or tear")
        }
        _ => (State::Fine, ""),
    };
    (state, format!("{} is on {kind}, {free} free{words}", place.display()))
}

fn temp_dir(machine: &Machine) -> Finding {
    let Some((place, stat)) = nearest(&machine.temp_dir) else {
        return (State::Unknown, format!("{} cannot be read", machine.temp_dir.display()));
    };
    let kind = kind(&place);
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    // Like df: blocks reserved for root are neither used nor free.
    let used = stat.f_blocks.saturating_sub(stat.f_bfree);
    let full = used as f64 / (used.saturating_add(stat.f_bavail)).max(1) as f64;
    let (state, words) = match kind {
        _ if full >= FULL_SHARE => (State::Problem, ": Ray stops spilling at 95 %"),
        _ if free < TEMP_FREE_MIN => (State::Problem, ": compiled kernels and sockets have no room"),
        "tmpfs" => (State::Note, ": files there count as memory of the container"),
        "nfs" | "lustre" | "smb" | "gpfs" | "ceph" | "9p" => {
            (State::Note, ": sockets and locks may not work over a network")
        }
        _ => (State::Fine, ""),
    };
    let shown =
        format!("{} is on {kind}, {} free, {:.0} % full{words}", place.display(), Bytes(free), full * 100.0);
    (state, shown)
}
