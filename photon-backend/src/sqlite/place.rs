//! Whether the files that are open still lie where they were opened.
//!
//! A file that was removed or replaced stays open, and takes everything in that is written to it; whoever opens its
//! path later finds nothing of that. SQLite does not look.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The database and its write-ahead log as they were when they were opened.
#[derive(Debug)]
pub(super) struct Place(Vec<(PathBuf, Mark)>);

impl Place {
    /// What lies at `path` now. The write-ahead log must have been opened.
    pub(super) fn of(path: &Path) -> Self {
        // Links are followed once: SQLite keeps the log beside what they lead to.
        let database = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut log = database.clone().into_os_string();
        log.push("-wal");
        let files = [database, log.into()];
        Self(files.into_iter().filter_map(|path| mark_of(&path).ok().map(|mark| (path, mark))).collect())
    }

    /// A file that is gone from its place, or has another one in it.
    pub(super) fn missing(&self) -> Option<&Path> {
        let gone = |(path, was): &&(PathBuf, Mark)| match mark_of(path) {
            Ok(mark) => mark != *was,
            // What cannot be looked at may be there.
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        self.0.iter().find(gone).map(|(path, _)| path.as_path())
    }
}

/// The device and the number of the file.
#[cfg(unix)]
type Mark = (u64, u64);

#[cfg(unix)]
fn mark_of(path: &Path) -> std::io::Result<Mark> {
    use std::os::unix::fs::MetadataExt;
    path.metadata().map(|found| (found.dev(), found.ino()))
}

/// Elsewhere a file that is open stays in its place.
#[cfg(not(unix))]
type Mark = ();

#[cfg(not(unix))]
fn mark_of(path: &Path) -> std::io::Result<Mark> {
    path.metadata().map(drop)
}
