//! Where a keeper answers calls of its worker that the filter could not decide: may this process get a signal, may
//! another process start. It checks against the processes below itself, so no stranger's process id passes.

use crate::calls::*;
use crate::notify::{Answer, Listener, Question};
use crate::objects::Objects;
use crate::procs;
use crate::stand_in;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Questions answered before the keeper checks anything else again.
const QUESTIONS_MAX: usize = 64;
/// Kinds of target that mean one process.
const PRIORITY_OF_PROCESS: u64 = 0;
const IO_PRIORITY_OF_PROCESS: u64 = 1;

const EPERM: i32 = 1;
const EAGAIN: i32 = 11;

/// The questions of one worker.
pub(crate) struct SyscallBroker {
    listener: Listener,
    /// Most processes of a model's program.
    processes_max: Option<usize>,
    /// Folder in which a model's program may change attributes of files.
    folder: Option<PathBuf>,
    /// Objects that the keeper made for the worker.
    objects: Objects,
    /// True if a process was refused because there were too many.
    pub(crate) was_full: bool,
}

impl SyscallBroker {
    /// `memory`: most bytes of System V shared memory.
    pub(crate) fn new(
        listener: OwnedFd,
        folder: Option<PathBuf>,
        processes_max: Option<usize>,
        memory: u64,
    ) -> SyscallBroker {
        let objects = Objects::new(memory);
        SyscallBroker { listener: Listener::new(listener), processes_max, folder, objects, was_full: false }
    }

    /// Answers waiting questions, up to a bound.
    pub(crate) fn attend(&mut self) {
        for _ in 0..QUESTIONS_MAX {
            let Some(question) = self.listener.next() else { return };
            let answer = self.decide(&question);
            // Fails if the caller was killed.
            let _ = self.listener.answer(&question, answer);
        }
    }

    fn decide(&mut self, question: &Question) -> Answer {
        let [first, second, third, ..] = question.arguments;
        let allow_if = |allowed: bool| if allowed { Answer::GoOn } else { Answer::Fail(EPERM) };
        match u32::try_from(question.number).unwrap_or(NO_CALL) {
            KILL if (first as i32) < 0 => allow_if(is_own_group(first as i32)),
            SETPRIORITY => allow_if(first == PRIORITY_OF_PROCESS && is_below(second as u32)),
            IOPRIO_SET => allow_if(first == IO_PRIORITY_OF_PROCESS && is_below(second as u32)),
            PTRACE => allow_if(is_below(second as u32)),
            CLONE | FORK | VFORK => self.another_process(),
            SHMGET => self.objects.shared_memory(first as i32, second as usize, third as i32),
            SEMGET => self.objects.semaphores(first as i32, second as i32, third as i32),
            MSGGET => self.objects.queue(first as i32, second as i32),
            CHMOD | FCHMOD | FCHMODAT | FCHMODAT2 | UTIMENSAT => {
                let Some(folder) = &self.folder else { return Answer::Fail(EPERM) };
                stand_in::change(question, folder, || self.listener.is_valid(question))
            }
            // Every other call in the table names a process first.
            _ => allow_if(is_below(first as u32)),
        }
    }

    fn another_process(&mut self) -> Answer {
        let Some(most) = self.processes_max else { return Answer::GoOn };
        if procs::descendants().len() < most {
            return Answer::GoOn;
        }
        self.was_full = true;
        Answer::Fail(EAGAIN)
    }
}

impl AsFd for SyscallBroker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Returns true if a process or thread descends from this process.
fn is_below(pid: u32) -> bool {
    let own = std::process::id();
    let mut next = (pid != own).then(|| procs::parent_of(pid)).flatten();
    // A process starts after its parent, so the walk ends; the bound is for reused ids.
    for _ in 0..procs::DEPTH_MAX {
        match next {
            Some((parent, _)) if parent == own => return true,
            Some((parent, _)) if parent > 1 => next = procs::parent_of(parent),
            _ => return false,
        }
    }
    false
}

/// Returns true if all processes of group `-group` descend from this process; -1 means all processes.
fn is_own_group(group: i32) -> bool {
    group != -1 && procs::of_group(group.unsigned_abs()).into_iter().all(is_below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn only_what_descends_from_this_process_is_below_it() {
        let mut child = std::process::Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let (own, parent) = (std::process::id(), std::os::unix::process::parent_id());
        assert!(is_below(child.id()) && !is_below(own) && !is_below(parent) && !is_below(1) && !is_below(0));
        assert!(is_own_group(-(child.id() as i32)) && !is_own_group(-1));
        // The group of this process holds what started it, or at least itself.
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        assert!(!is_own_group(-group));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_below(child.id()));
    }
}
