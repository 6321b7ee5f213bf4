//! One delivery alone in the process: who may run beside whom.
//!
//! A loop with running handlers holds its place in company; a loop that must run a delivery alone waits until all
//! places are free, and nobody takes one meanwhile. It is one for the whole process, over all executors in it,
//! because an end of the process says nothing about which of them was at fault.

use std::sync::{Arc, LazyLock};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::work::{Done, Work};

static HERE: LazyLock<Process> = LazyLock::new(Process::default);

/// What ends as one if a handler ends it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Process(Arc<RwLock<()>>);

impl Process {
    /// The process that this code runs in.
    pub(crate) fn here() -> Self {
        HERE.clone()
    }
}

/// What a loop has of the process.
#[derive(Debug)]
pub(super) struct Place {
    process: Process,
    company: Option<OwnedRwLockReadGuard<()>>,
    solitude: Option<OwnedRwLockWriteGuard<()>>,
    asked: bool,
}

/// What was waited for.
#[derive(Debug)]
pub(super) enum Granted {
    Company(OwnedRwLockReadGuard<()>),
    Solitude(OwnedRwLockWriteGuard<()>),
}

impl Place {
    pub(super) fn new(process: Process) -> Self {
        Self { process, company: None, solitude: None, asked: false }
    }

    /// Takes a place among others for what is about to run. If somebody waits to be alone, gives what to wait for.
    pub(super) fn join(&mut self) -> Result<(), Option<Work>> {
        if self.company.is_some() || self.solitude.is_some() {
            return Ok(());
        }
        let process = self.process.0.clone();
        match process.clone().try_read_owned() {
            Ok(guard) => {
                self.company = Some(guard);
                Ok(())
            }
            Err(_) => Err(self.ask(async { Granted::Company(process.read_owned().await) })),
        }
    }

    /// Asks to be alone. The loop runs nothing.
    pub(super) fn ask_solitude(&mut self) -> Option<Work> {
        self.company = None;
        if self.solitude.is_some() {
            return None;
        }
        let process = self.process.0.clone();
        self.ask(async { Granted::Solitude(process.write_owned().await) })
    }

    fn ask(&mut self, granted: impl Future<Output = Granted> + Send + 'static) -> Option<Work> {
        let first = !std::mem::replace(&mut self.asked, true);
        first.then(|| -> Work { Box::pin(async move { Done::Placed(granted.await) }) })
    }

    /// Takes what was asked for; whether that is to be alone.
    pub(super) fn take(&mut self, granted: Granted) -> bool {
        self.asked = false;
        match granted {
            Granted::Company(guard) => {
                self.company = Some(guard);
                false
            }
            Granted::Solitude(guard) => {
                self.solitude = Some(guard);
                true
            }
        }
    }

    /// Gives up what is not needed any more.
    pub(super) fn leave(&mut self, runs: bool, in_solitude: bool) {
        if !runs {
            self.company = None;
        }
        if !in_solitude {
            self.solitude = None;
        }
    }
}
