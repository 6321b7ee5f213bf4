//! The commits of a git repository, one after another, as git stores them.
//!
//! They are read from `git rev-list | git cat-file --batch`: raw objects, each with its length before it. Unlike
//! `git log` that knows no configuration, and any byte may stand anywhere.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::commit::Commit;

/// How much of a commit object is looked at. The rest of a message that is longer is left out.
const READ_BYTES: u64 = 256 * 1024;

/// A repository that exists and has commits.
pub struct Repository {
    path: PathBuf,
}

impl Repository {
    /// The repository at this path, or around the current directory.
    pub async fn find(path: Option<&Path>) -> Result<Self> {
        let path = path.unwrap_or(Path::new("."));
        ensure!(path.is_dir(), "there is no directory {}; {NAME_ONE}", path.display());
        let answer = git(path).args(["rev-parse", "--absolute-git-dir"]).output().await.context(NO_GIT)?;
        if !answer.status.success() {
            let reason = String::from_utf8_lossy(&answer.stderr);
            let place = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            bail!("{} is in no git repository; {NAME_ONE}\n\ngit says: {}", place.display(), reason.trim());
        }
        let repository = Self { path: path_of(answer.stdout.trim_ascii_end()) };
        let head = git(&repository.path).args(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).output();
        if !head.await?.status.success() {
            bail!("{} has no commits yet; {NAME_ONE}", repository.path.display());
        }
        Ok(repository)
    }

    /// What people call it: the name of its directory.
    pub fn name(&self) -> String {
        let named = match self.path.file_name() {
            Some(name) if name == ".git" => self.path.parent().and_then(Path::file_name),
            name => name,
        };
        named.map_or_else(|| "repository".to_owned(), |name| name.to_string_lossy().into_owned())
    }

    /// Where git keeps it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many commits lead to `HEAD`.
    pub async fn count(&self) -> Result<u64> {
        let answer = git(&self.path).args(["rev-list", "--count", "HEAD"]).output().await?;
        check("git rev-list", answer.status)?;
        Ok(String::from_utf8_lossy(&answer.stdout).trim().parse()?)
    }

    /// The commits that lead to `HEAD`, parents before their children.
    pub fn commits(&self) -> Result<Commits> {
        let mut list = git(&self.path)
            .args(["rev-list", "--topo-order", "--reverse", "HEAD"])
            .stdout(Stdio::piped())
            .spawn()
            .context(NO_GIT)?;
        let hashes: Stdio = list.stdout.take().context("git rev-list has no output")?.try_into()?;
        let mut show = git(&self.path)
            .args(["cat-file", "--batch", "--buffer"])
            .stdin(hashes)
            .stdout(Stdio::piped())
            .spawn()
            .context(NO_GIT)?;
        let objects = BufReader::new(show.stdout.take().context("git cat-file has no output")?);
        Ok(Commits { list, show, objects })
    }
}

/// A running reading of commits. It holds one at a time.
pub struct Commits {
    list: Child,
    show: Child,
    objects: BufReader<ChildStdout>,
}

impl Commits {
    /// The next commit, or `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<Commit>> {
        // "<hash> commit <bytes>\n", the bytes, "\n"
        let mut line = String::new();
        if self.objects.read_line(&mut line).await? == 0 {
            check("git rev-list", self.list.wait().await?)?;
            check("git cat-file", self.show.wait().await?)?;
            return Ok(None);
        }
        let [hash, "commit", bytes] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            bail!("git cat-file answered {:?}: is the repository whole? `git fsck` tells", line.trim());
        };
        let bytes: u64 = bytes.parse()?;
        let mut object = Vec::new();
        (&mut self.objects).take(bytes.min(READ_BYTES)).read_to_end(&mut object).await?;
        let mut rest = (&mut self.objects).take(bytes.saturating_sub(READ_BYTES) + 1);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
        Ok(Some(Commit::parse(hash, &object, bytes)))
    }
}

const NAME_ONE: &str = "name a repository that is on this disk:

    cargo run --example quickstart -- PATH

(`git clone https://github.com/rust-lang/log` makes a small one)";
const NO_GIT: &str = "the command `git` cannot be run: install git";

/// A command on this repository, whatever repository the environment is about (as it is in a git hook).
fn git(path: &Path) -> Command {
    let mut command = Command::new("git");
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR"] {
        command.env_remove(variable);
    }
    command.arg("-C").arg(path).stdin(Stdio::null()).kill_on_drop(true);
    command
}

fn check(command: &str, status: ExitStatus) -> Result<()> {
    ensure!(status.success(), "{command} ended with {status}; what it said stands above");
    Ok(())
}

#[cfg(unix)]
fn path_of(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(bytes).into()
}

#[cfg(not(unix))]
fn path_of(bytes: &[u8]) -> PathBuf {
    String::from_utf8_lossy(bytes).into_owned().into()
}
