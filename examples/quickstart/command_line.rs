//! What the user asked for.

use std::fs::{File, TryLockError};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};

use crate::git::Repository;

const USAGE: &str = "usage: quickstart [REPOSITORY] [--engine URL] [--all]

  REPOSITORY    a git repository, or a directory in one; default: the current directory
  --engine URL  where the log is kept; default: sqlite:quickstart-NAME.db, in the current directory
  --all         list every author and every dead letter at the end";

/// The command line.
#[derive(Default)]
pub struct CommandLine {
    pub repository: Option<PathBuf>,
    pub all: bool,
    engine: Option<String>,
}

/// Where everything is kept.
pub struct Engine {
    pub url: String,
    /// The file with the program's own tables; `None` for memory.
    pub tables: Option<PathBuf>,
}

impl CommandLine {
    pub fn read() -> Result<Self> {
        let mut read = Self::default();
        let mut arguments = std::env::args_os().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.to_str() {
                Some("--help" | "-h") => {
                    println!("{USAGE}");
                    std::process::exit(0);
                }
                Some("--all") => read.all = true,
                Some("--engine") => match arguments.next().map(std::ffi::OsString::into_string) {
                    Some(Ok(url)) => read.engine = Some(url),
                    _ => bail!("--engine wants a URL\n\n{USAGE}"),
                },
                Some(option) if option.starts_with('-') => bail!("there is no option {option}\n\n{USAGE}"),
                _ => {
                    ensure!(read.repository.is_none(), "more than one repository is named\n\n{USAGE}");
                    read.repository = Some(argument.into());
                }
            }
        }
        Ok(read)
    }

    /// The program's tables live in the SQLite file that holds the log; beside another engine they have a file
    /// of their own, and beside memory they are in memory too.
    pub fn engine(&self, repository: &Repository) -> Engine {
        let plain = |letter: char| if letter.is_alphanumeric() { letter } else { '-' };
        let name: String = repository.name().chars().map(plain).collect();
        let file = format!("quickstart-{name}.db");
        let url = self.engine.clone().unwrap_or_else(|| format!("sqlite:{file}"));
        let tables = match url.split_once(':') {
            Some(("memory", _)) => None,
            Some(("sqlite", path)) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                Some(path.split('?').next().unwrap_or(path).into())
            }
            _ => Some(file.into()),
        };
        Engine { url, tables }
    }
}

impl Engine {
    /// Makes sure that nobody else publishes this history into the same place at the same time: two would both
    /// publish what neither has seen handled. The lock is gone when the process is, however it ends.
    pub fn lock(&self) -> Result<Option<File>> {
        let Some(tables) = &self.tables else { return Ok(None) };
        let mut path = tables.clone().into_os_string();
        path.push(".lock");
        let path = PathBuf::from(path);
        let file = File::create(&path).with_context(|| format!("{} cannot be made", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => bail!(
                "another quickstart works on {}: wait for its end, or name another file with --engine sqlite:FILE",
                tables.display()
            ),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("{} cannot be locked", path.display()))
            }
        }
    }
}
