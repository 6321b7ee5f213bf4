//! A process that ends with this one, and signals.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Starts the server, prints its process number, and waits on its input. At a line of it, or at its end, which
/// comes also when the process at the other end is killed, it kills the server and all its children. At the end
/// without a line it removes the directory, too.
const WATCHDOG: &str = r#"
trap : INT TERM HUP
dir=$1
shift
"$@" </dev/null >>"$dir/log" 2>&1 &
server=$!
echo "$server"
if read -r order; then order=keep; else order=remove; fi
children=$(cat "/proc/$server/task/$server/children" 2>/dev/null)
kill -s KILL "$server" $children 2>/dev/null
wait "$server" 2>/dev/null
for child in $children; do
    while grep -qs '^[0-9]* (.*) [^Z]' "/proc/$child/stat"; do sleep 0.01; done
done
if [ "$order" = remove ]; then rm -rf "$dir"; fi
"#;

/// How often it is looked whether what is waited for has come.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A server that runs under a watchdog.
#[derive(Debug)]
pub(super) struct Process {
    watchdog: Child,
    /// Closed, it ends the server. `None` once that is done.
    orders: Option<ChildStdin>,
    pid: u32,
}

impl Process {
    /// Starts `command` with its output in the file `log` of the directory.
    pub(super) fn start(dir: &Path, command: &[OsString]) -> Self {
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(dir)
            .args(command)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell can be started");
        let orders = watchdog.stdin.take();
        let output = watchdog.stdout.take().expect("its output is a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("the watchdog answers");
        let pid = line.trim().parse().expect("the watchdog prints a process number");
        Self { watchdog, orders, pid }
    }

    /// The process number of the server.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it is there and was not killed.
    pub(super) fn is_running(&self) -> bool {
        is_running(self.pid)
    }

    /// Sends a signal to the server and its children.
    pub(super) fn signal(&self, signal: &str) {
        let children =
            fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid)).unwrap_or_default();
        let pids = children.split_whitespace().map(str::to_owned);
        send(signal, pids.chain([self.pid.to_string()]));
    }

    /// Sends a signal to the server alone.
    pub(super) fn signal_alone(&self, signal: &str) {
        send(signal, [self.pid.to_string()]);
    }

    /// Kills it with all its children and keeps its directory.
    pub(super) fn kill(mut self) {
        let mut orders = self.orders.take().expect("only the end takes it");
        // It may have ended by itself; then so did nobody else.
        let _ = orders.write_all(b"keep\n");
        drop(orders);
        let _ = self.watchdog.wait();
    }
}

impl Drop for Process {
    /// Kills it and removes its directory.
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.watchdog.wait();
    }
}

fn send(signal: &str, pids: impl IntoIterator<Item = String>) {
    // One that has ended meanwhile makes it fail: the others got it.
    let _ =
        Command::new("sh").args(["-c", r#"kill -s "$@" 2>/dev/null"#, "kill", signal]).args(pids).status();
}

/// Whether the process is there and not only waiting to be reaped.
fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Waits until `condition` holds. `false` if it does not within `limit`.
pub(super) fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        thread::sleep(LOOK_EVERY);
    }
}
