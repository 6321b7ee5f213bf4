//! What tells this process from others, and the proof that another one is gone.
//!
//! A proof needs Linux with its own `/proc`. Elsewhere host and start time stay empty, and nothing is proved
//! about other processes: they are waited for.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use photon_core::ids::{Incarnation, InstanceId};
use photon_core::machine::lease::Fate;
use photon_core::store::Member;
use uuid::Uuid;

/// The incarnations of this process that ended. It holds those that ended rather than those that live, so that
/// a second copy of this library in the process, which has a list of its own, proves nothing wrong.
static ENDED: Mutex<BTreeSet<Incarnation>> = Mutex::new(BTreeSet::new());

fn ended() -> MutexGuard<'static, BTreeSet<Incarnation>> {
    ENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An incarnation of this process for as long as it is kept. Once dropped it counts as dead for everybody in
/// the process, also if it never left the store: drop it after its work has ended.
#[derive(Debug)]
pub(super) struct Life {
    incarnation: Incarnation,
}

impl Life {
    /// A new incarnation.
    pub(super) fn begin() -> Self {
        Self { incarnation: Incarnation(Uuid::new_v4()) }
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// This run as others see it.
    pub(super) fn member(&self, instance: InstanceId) -> Member {
        let pid = std::process::id();
        let host = host(pid).unwrap_or_default();
        let process_start = if host.is_empty() { None } else { look_up(pid).running() }.unwrap_or_default();
        Member { incarnation: self.incarnation, instance, host, pid, process_start }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        ended().insert(self.incarnation);
    }
}

/// Whether it is certain that the member does not run any more: it was dropped in this process, or it ran on
/// this host and its process is gone. `false` proves nothing.
pub(super) fn is_dead(member: &Member) -> bool {
    ended().contains(&member.incarnation) || is_gone(member)
}

/// What is known about the process of a member.
pub(super) fn fate(member: &Member) -> Fate {
    if ended().contains(&member.incarnation) || is_running(member) {
        Fate::Lives
    } else if is_gone(member) {
        Fate::Gone
    } else {
        Fate::Unknown
    }
}

fn is_running(member: &Member) -> bool {
    let same_host = !member.host.is_empty() && host(std::process::id()).as_deref() == Some(&member.host);
    same_host && look_up(member.pid).running().is_some_and(|start| start == member.process_start)
}

fn is_gone(member: &Member) -> bool {
    if member.host.is_empty() || member.process_start.is_empty() {
        return false;
    }
    let me = std::process::id();
    if host(me).as_deref() != Some(&member.host) {
        return false;
    }
    match look_up(member.pid) {
        Process::Running(start) => start != member.process_start,
        Process::Gone => sees_others(me),
        Process::Unknown => false,
    }
}

/// Whether a process that is not shown does not exist: `/proc` can be set to hide those of other users. The
/// first process is another's, and always runs.
fn sees_others(me: u32) -> bool {
    me != 1 && matches!(look_up(1), Process::Running(_))
}

/// This boot of this machine and the set of process numbers that this process lives in.
fn host(pid: u32) -> Option<String> {
    // A `/proc` of another set of process numbers shows this process under another number.
    let shown = fs::read_link("/proc/self").ok()?;
    if shown.to_str()? != pid.to_string() {
        return None;
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{}/{}", boot.trim(), namespace.to_str()?))
}

#[derive(Debug, PartialEq, Eq)]
enum Process {
    /// It runs; the time it started at.
    Running(String),
    /// There is none, or it has ended and nobody asked for its result yet.
    Gone,
    /// It cannot be told.
    Unknown,
}

impl Process {
    fn running(self) -> Option<String> {
        match self {
            Process::Running(start) => Some(start),
            Process::Gone | Process::Unknown => None,
        }
    }
}

fn look_up(pid: u32) -> Process {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => parse_stat(&stat),
        Err(error) if error.kind() == ErrorKind::NotFound => Process::Gone,
        Err(_) => Process::Unknown,
    }
}

/// Reads `pid (name) state ... start ...`. The name can hold anything, parentheses and blanks too.
fn parse_stat(stat: &str) -> Process {
    let Some((_, fields)) = stat.rsplit_once(')') else {
        return Process::Unknown;
    };
    let mut fields = fields.split_ascii_whitespace();
    // The state is the third field of the line, the start time the 22nd.
    match (fields.next(), fields.nth(18)) {
        (Some("Z" | "X" | "x"), _) => Process::Gone,
        (Some(_), Some(start)) => Process::Running(start.to_owned()),
        _ => Process::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life() -> (Life, Member) {
        let life = Life::begin();
        let member = life.member(InstanceId::new("a").unwrap());
        (life, member)
    }

    #[test]
    fn what_was_dropped_in_this_process_is_dead() {
        let (life, member) = life();
        assert!(!is_dead(&member));
        drop(life);
        assert!(is_dead(&member));
        assert_eq!(fate(&member), Fate::Lives, "this process is still there");
    }

    #[test]
    fn stat_lines_are_read_whatever_the_name() {
        let stat = "7 (a) Z) (x) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 271806 20 21\n";
        assert_eq!(parse_stat(stat), Process::Running("271806".to_owned()));
        assert_eq!(parse_stat(&stat.replace(" S ", " Z ")), Process::Gone);
        for broken in ["", "7 (a", "7 (a) S 1 2", "7 (a)"] {
            assert_eq!(parse_stat(broken), Process::Unknown, "{broken}");
        }
    }

    #[cfg(target_os = "linux")]
    mod linux {
        use super::*;
        use std::process::{Command, Stdio};

        #[test]
        fn a_killed_process_is_dead_before_and_after_it_was_reaped() {
            let (_life, mut member) = life();
            let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            member.pid = child.id();
            member.process_start = look_up(member.pid).running().unwrap();
            assert!(!is_dead(&member));
            child.kill().unwrap();
            while look_up(member.pid) != Process::Gone {
                std::thread::yield_now();
            }
            assert!(is_dead(&member), "a zombie");
            child.wait().unwrap();
            assert!(is_dead(&member), "no such process");
            assert_eq!(fate(&member), Fate::Gone);
        }

        #[test]
        fn another_process_with_the_same_number_is_not_it() {
            let (_life, member) = life();
            let reused = Member { process_start: "1".to_owned(), ..member.clone() };
            assert!(is_dead(&reused));
        }

        #[test]
        fn nothing_is_proved_about_other_hosts() {
            let (_life, member) = life();
            assert!(!member.host.is_empty() && !member.process_start.is_empty());
            let dead = Member { process_start: "1".to_owned(), ..member };
            assert!(!is_dead(&Member { host: "elsewhere".to_owned(), ..dead.clone() }));
            assert!(!is_dead(&Member { host: String::new(), ..dead.clone() }));
            assert!(!is_dead(&Member { process_start: String::new(), ..dead }));
        }
    }
}
