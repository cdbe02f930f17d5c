//! Checks what a rank requires of rank 0's welcome before it uses any of it: the list has the rank itself at its place,
//! and the window is one that a supervisor of this host made. Supervisors open the window to write, so a path to
//! anything else is refused and never opened, here and each time (`window.rs`).

use crate::hello::{Hello, Member};
use crate::window::may_be_window;
use plimsoll_base::{Error, Result};
use std::path::Path;

/// Checks the members and the window that rank 0 sent to `own`.
///
/// Errors: `rank-lost` for a list that no rank 0 sends; `ranks-window` for a path that is not this host's window.
pub(crate) fn check(own: &Hello, members: &[Member], window: &Path) -> Result<()> {
    let rank = own.rank as usize;
    let is_in_order = members.iter().zip(0..).all(|(member, number)| member.rank == number);
    let is_own = members.get(rank).is_some_and(|member| member.pid == own.pid && member.host == own.host);
    if members.len() != own.ranks as usize || !is_in_order || !is_own || !counts_sites(members) {
        let message =
            format!("rank 0 sent a list of {} ranks in which {} is not", members.len(), own.words());
        return Err(crate::errors::lost(message));
    }
    let is_first = members[..rank].iter().all(|member| member.site != members[rank].site);
    let is_of_host = if is_first { window == own.window } else { may_be_window(window) };
    if is_of_host {
        return Ok(());
    }
    let path = window.display().to_string();
    let message =
        format!("rank 0 names {} as memory that ranks share, and it is none", plimsoll_base::shown(&path));
    Err(Error::new("ranks-window", message)
        .fact("it was not opened: a window is /proc/PID/fd/NUMBER of a supervisor on this host")
        .hint("start all ranks of a host as one user and with one /proc"))
}

/// Returns true if hosts count from 0 in the order of their first ranks.
fn counts_sites(members: &[Member]) -> bool {
    let mut next = 0;
    members.iter().all(|member| {
        let is_next = member.site <= next;
        next = next.max(member.site.saturating_add(1));
        is_next
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::{Launch, Launcher};
    use crate::window::{Access, Window, memory_file, open_window};
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    fn hello(rank: u32, window: &Path) -> Hello {
        let launch = Launch {
            rank,
            ranks: 3,
            local_rank: rank,
            local_ranks: 3,
            address: "127.0.0.1".into(),
            port: 1,
            id: "test".into(),
            launcher: Launcher::Torchrun,
        };
        let hello = Hello::of_this_process(&launch, None, []);
        Hello { pid: 100 + rank, window: window.into(), ..hello }
    }

    fn members(sites: [u32; 3]) -> Vec<Member> {
        (0..3).zip(sites).map(|(rank, site)| hello(rank, Path::new("")).member(site)).collect()
    }

    #[test]
    fn only_a_window_of_this_host_is_taken() {
        let (own, other) = (Window::new().expect("memory"), Window::new().expect("memory"));
        let letter = memory_file("plimsoll-letter", 0).expect("memory");
        let file = std::env::temp_dir().join(format!("plimsoll-welcome-{}", std::process::id()));
        let open = std::fs::File::create(&file).expect("a file");
        let of = |fd: i32| PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()));
        let hello = hello(1, &own.path());
        let refused = |sites, window: &Path| {
            check(&hello, &members(sites), window).map_err(|error| (error.slug, error.to_string()))
        };
        let same_host = [0, 0, 0];
        assert_eq!(refused(same_host, &other.path()), Ok(()), "rank 0's");
        assert_eq!(refused([0, 1, 1], &own.path()), Ok(()), "it is the first of its host");
        for (sites, window) in [
            ([0, 1, 1], other.path()),
            (same_host, file.clone()),
            (same_host, of(open.as_raw_fd())),
            (same_host, of(letter.as_raw_fd())),
            (same_host, PathBuf::from("/etc/passwd")),
            (same_host, PathBuf::from("")),
            (same_host, PathBuf::from("../../dev/sda")),
            (same_host, other.path().join("../../../../etc/passwd")),
            (same_host, PathBuf::from(format!("{}/", other.path().display()))),
            (same_host, PathBuf::from("/proc/self/fd/1")),
            (same_host, PathBuf::from("/proc/1x/fd/1")),
        ] {
            let (slug, words) = refused(sites, &window).expect_err(&window.display().to_string());
            assert!(slug == "ranks-window" && words.contains("not opened"), "{words}");
        }
        let gone = of(i32::MAX);
        assert_eq!(refused(same_host, &gone), Ok(()), "rank 0 has ended: others say so");
        for path in [&file, &of(open.as_raw_fd()), &of(letter.as_raw_fd()), &gone] {
            assert!(open_window(path, Access::Read).is_err(), "{}", path.display());
        }
        open_window(&other.path(), Access::ReadAndWrite).expect("a window");
        std::fs::remove_file(&file).expect("it is there");
    }

    #[test]
    fn a_list_without_this_rank_at_its_place_is_refused() {
        let window = Window::new().expect("memory");
        let hello = hello(1, &window.path());
        let good = members([0, 0, 0]);
        let mut reordered = good.clone();
        reordered.swap(0, 1);
        let mut other = good.clone();
        other[1].pid += 1;
        for list in [Vec::new(), good[..2].to_vec(), reordered, other, members([0, 2, 1]), members([1, 1, 1])]
        {
            assert_eq!(check(&hello, &list, &window.path()).expect_err("no such list").slug, "rank-lost");
        }
        check(&hello, &good, &window.path()).expect("this one");
    }
}
