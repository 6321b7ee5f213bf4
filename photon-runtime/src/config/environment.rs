//! The environment: the only place that reads it, and only when the user asks for it.

use std::ffi::OsString;
use std::time::Duration;

use photon_core::ids::InstanceId;
use photon_core::options::Options;
use photon_core::registry::{Problem, Problems};
use photon_core::time::parse_duration;

use super::url::Engine;
use super::{GroupMember, parse};

/// What the environment sets; `None` leaves a setting to the builder.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Environment {
    pub(crate) engine: Option<Engine>,
    pub(crate) instance: Option<InstanceId>,
    pub(crate) group: Option<GroupMember>,
    pub(crate) group_shards: Option<Vec<u16>>,
    pub(crate) retention: Option<Duration>,
    pub(crate) retention_limit: Option<Duration>,
    pub(crate) max_payload: Option<usize>,
    pub(crate) drain_timeout: Option<Duration>,
    pub(crate) lease_ttl: Option<Duration>,
    pub(crate) options: Options,
    group_index: Option<u32>,
    group_count: Option<u32>,
}

/// An environment variable that [`from_env`](crate::PhotonBuilder::from_env) reads.
#[derive(Clone, Copy)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it sets, and how the value is written.
    pub doc: &'static str,
    set: fn(&mut Environment, &str) -> Result<(), String>,
}

impl std::fmt::Debug for Variable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Variable").field("name", &self.name).field("doc", &self.doc).finish_non_exhaustive()
    }
}

/// Every environment variable that Photon knows, for help texts.
pub fn variables() -> &'static [Variable] {
    VARIABLES
}

/// Variables that belong to Photon's own tests.
const TEST_PREFIXES: [&str; 2] = ["PHOTON_SIM_", "PHOTON_REQUIRE_"];

macro_rules! variables {
    ($($name:literal, $doc:literal, $($field:ident).+ = $parse:expr;)*) => {
        const VARIABLES: &[Variable] = &[$(Variable {
            name: $name,
            doc: $doc,
            set: |environment, text| {
                environment.$($field).+ = Some($parse(text)?);
                Ok(())
            },
        }),*];
    };
}

variables! {
    "PHOTON_URL", "the engine: sqlite:orders.db, sqlite://orders.db?durability=normal or memory:",
        engine = Engine::parse;
    "PHOTON_INSTANCE", "the stable name of this instance, such as pod-1",
        instance = parse::of;
    "PHOTON_GROUP_INDEX", "the number of this instance in its group, from 0; with PHOTON_GROUP_COUNT",
        group_index = parse::number;
    "PHOTON_GROUP_COUNT", "how many instances the group has; with PHOTON_GROUP_INDEX",
        group_count = parse::number;
    "PHOTON_GROUP_SHARDS", "the shards of this instance, such as 0,2,5-7, instead of index and count",
        group_shards = parse::shards;
    "PHOTON_RETENTION", "after how long settled events are removed, of topics without a retention of their own, such as 7d",
        retention = parse_duration;
    "PHOTON_RETENTION_LIMIT", "after how long events are removed even if they are not settled, such as 30d",
        retention_limit = parse_duration;
    "PHOTON_MAX_PAYLOAD", "the largest payload, such as 1MiB",
        max_payload = parse::size;
    "PHOTON_DRAIN_TIMEOUT", "how long a drain waits for running handlers, such as 30s",
        drain_timeout = parse_duration;
    "PHOTON_LEASE_TTL", "after how long without a sign of life an instance loses its shards, such as 5s",
        lease_ttl = parse_duration;
    "PHOTON_START", "where new subscriptions start: earliest, latest or at(2026-01-31T12:00:00Z)",
        options.start = parse::start;
    "PHOTON_CONCURRENCY", "how many deliveries of a subscription run at a time",
        options.concurrency = parse::number;
    "PHOTON_PREFETCH", "how many deliveries of a subscription wait in memory",
        options.prefetch = parse::number;
    "PHOTON_WINDOW", "how many deliveries of a subscription may be unsettled in memory",
        options.window = parse::number;
    "PHOTON_TIMEOUT", "how long one attempt may take, such as 30s",
        options.timeout = parse_duration;
    "PHOTON_MAX_ATTEMPTS", "how many attempts a delivery has",
        options.max_attempts = parse::number;
    "PHOTON_BACKOFF", "how long to wait between attempts, such as exponential(200ms..30s)",
        options.backoff = parse::of;
    "PHOTON_JITTER", "how much longer a delay may become at random, as a share from 0 to 1",
        options.jitter = parse::share;
    "PHOTON_GIVE_UP_AFTER", "how long after the first failure a delivery is given up on, such as 1h",
        options.give_up_after = parse_duration;
    "PHOTON_PARK_AFTER", "from which delay on a delivery leaves the memory, such as 10s",
        options.park_after = parse_duration;
    "PHOTON_MAX_DEFER_AGE", "how long handlers may defer a delivery in all, such as 7d",
        options.max_defer_age = parse_duration;
    "PHOTON_ON_DEAD", "what later events of a key do after a dead letter: continue or block_key",
        options.on_dead = parse::on_dead;
    "PHOTON_MAX_BLOCKED", "how many deliveries of a key may be stored behind one that holds it up",
        options.max_blocked = parse::number;
    "PHOTON_CHECKPOINT_EVERY", "after how many settled deliveries the checkpoint is written",
        options.checkpoint_every = parse::number;
    "PHOTON_CHECKPOINT_INTERVAL", "how long a settled delivery waits for the checkpoint, such as 200ms",
        options.checkpoint_interval = parse_duration;
    "PHOTON_EXPIRE_AFTER", "after how long a durable position without its instance may be forgotten",
        options.expire_after = parse_duration;
    "PHOTON_BREAKER", "after how many failures of how many attempts nothing is handed out, such as 5 of 10 for 30s",
        options.breaker = parse::breaker;
}

impl Environment {
    /// Reads the variables of this process.
    pub(crate) fn read() -> Result<Self, Problems> {
        Self::parse(std::env::vars_os())
    }

    /// Reads the given variables; all that is wrong with them is reported at once.
    pub(crate) fn parse(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, Problems> {
        let mut environment = Environment::default();
        let mut problems = Vec::new();
        for (name, value) in variables {
            let name = name.to_string_lossy();
            if !name.starts_with("PHOTON_") || TEST_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            if let Err(message) = environment.set(&name, &value) {
                problems.push(Problem::at(name, message));
            }
        }
        if let Some(problem) = environment.join_group() {
            problems.push(problem);
        }
        problems.sort();
        if problems.is_empty() { Ok(environment) } else { Err(Problems(problems)) }
    }

    fn set(&mut self, name: &str, value: &OsString) -> Result<(), String> {
        let Some(variable) = VARIABLES.iter().find(|variable| variable.name == name) else {
            return Err(unknown(name));
        };
        let Some(text) = value.to_str() else {
            return Err(format!("its value is not UTF-8; it sets {}", variable.doc));
        };
        (variable.set)(self, text).map_err(|error| format!("{error} (it sets {})", variable.doc))
    }

    fn join_group(&mut self) -> Option<Problem> {
        let (index, count) = match (self.group_index, self.group_count) {
            (None, None) => return None,
            (Some(index), Some(count)) => (index, count),
            (Some(_), None) => {
                return Some(Problem::at("PHOTON_GROUP_INDEX", "it needs PHOTON_GROUP_COUNT beside it"));
            }
            (None, Some(_)) => {
                return Some(Problem::at("PHOTON_GROUP_COUNT", "it needs PHOTON_GROUP_INDEX beside it"));
            }
        };
        let group = GroupMember { index, count };
        self.group = Some(group);
        group.problem().map(|problem| Problem::at("PHOTON_GROUP_INDEX", problem))
    }
}

fn unknown(name: &str) -> String {
    let nearest = VARIABLES.iter().map(|v| (distance(v.name, name), v.name)).min();
    match nearest {
        Some((distance, nearest)) if distance <= 3 => {
            format!("there is no such variable: did you mean {nearest}?")
        }
        _ => {
            let names: Vec<_> = VARIABLES.iter().map(|variable| variable.name).collect();
            format!("there is no such variable: remove it; known are {}", names.join(", "))
        }
    }
}

/// How many characters must be changed, added or removed to make `b` of `a`.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.bytes().enumerate() {
            let change = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use photon_core::machine::retry::Backoff;
    use photon_core::options::{BreakerPolicy, OnDead, Start};

    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<Environment, String> {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        Environment::parse(variables).map_err(|problems| problems.to_string())
    }

    #[test]
    fn every_variable_is_read() {
        let values = [
            ("PHOTON_URL", "memory:"),
            ("PHOTON_INSTANCE", "pod-1"),
            ("PHOTON_GROUP_INDEX", "1"),
            ("PHOTON_GROUP_COUNT", "3"),
            ("PHOTON_GROUP_SHARDS", "0,2,5-7"),
            ("PHOTON_RETENTION", "7d"),
            ("PHOTON_RETENTION_LIMIT", "30d"),
            ("PHOTON_MAX_PAYLOAD", "2MiB"),
            ("PHOTON_DRAIN_TIMEOUT", "1m"),
            ("PHOTON_LEASE_TTL", "3s"),
            ("PHOTON_START", "latest"),
            ("PHOTON_CONCURRENCY", "5"),
            ("PHOTON_PREFETCH", "6"),
            ("PHOTON_WINDOW", "7"),
            ("PHOTON_TIMEOUT", "8s"),
            ("PHOTON_MAX_ATTEMPTS", "9"),
            ("PHOTON_BACKOFF", "fixed(1s)"),
            ("PHOTON_JITTER", "0.5"),
            ("PHOTON_GIVE_UP_AFTER", "1h"),
            ("PHOTON_PARK_AFTER", "11s"),
            ("PHOTON_MAX_DEFER_AGE", "1d"),
            ("PHOTON_ON_DEAD", "block_key"),
            ("PHOTON_MAX_BLOCKED", "15"),
            ("PHOTON_CHECKPOINT_EVERY", "12"),
            ("PHOTON_CHECKPOINT_INTERVAL", "13ms"),
            ("PHOTON_EXPIRE_AFTER", "14d"),
            ("PHOTON_BREAKER", "5 of 10 for 15s"),
        ];
        assert_eq!(
            values.map(|(name, _)| name).as_slice(),
            variables().iter().map(|v| v.name).collect::<Vec<_>>()
        );
        let secs = |n| Some(Duration::from_secs(n));
        let environment = parse(&values).unwrap();
        assert_eq!(environment.engine, Some(Engine::Memory));
        assert_eq!(environment.instance, Some(InstanceId::new("pod-1").unwrap()));
        assert_eq!(environment.group, Some(GroupMember { index: 1, count: 3 }));
        assert_eq!(environment.group_shards, Some(vec![0, 2, 5, 6, 7]));
        assert_eq!(environment.retention, secs(7 * 86_400));
        assert_eq!(environment.retention_limit, secs(30 * 86_400));
        assert_eq!(environment.max_payload, Some(2 << 20));
        assert_eq!(environment.drain_timeout, secs(60));
        assert_eq!(environment.lease_ttl, secs(3));
        let options = Options {
            start: Some(Start::Latest),
            concurrency: Some(5),
            prefetch: Some(6),
            window: Some(7),
            timeout: secs(8),
            max_attempts: Some(9),
            backoff: Some(Backoff::Fixed(Duration::from_secs(1))),
            jitter: Some(0.5),
            give_up_after: secs(3_600),
            park_after: secs(11),
            max_defer_age: secs(86_400),
            on_dead: Some(OnDead::BlockKey),
            max_blocked: Some(15),
            classify: None,
            checkpoint_every: Some(12),
            checkpoint_interval: Some(Duration::from_millis(13)),
            expire_after: secs(14 * 86_400),
            breaker: Some(BreakerPolicy { failures: 5, of: 10, cool_down: Duration::from_secs(15) }),
        };
        assert_eq!(environment.options, options);
    }

    #[test]
    fn p12_all_mistakes_in_the_environment_are_listed_at_once() {
        let error = parse(&[
            ("PHOTON_TIMEOUT", "soon"),
            ("PHOTON_TIMEOUTS", "30s"),
            ("PHOTON_CONCURRENCY", "many"),
            ("PHOTON_ELEPHANT", "1"),
            ("PHOTON_INSTANCE", "pod 1"),
            ("PHOTON_GROUP_COUNT", "3"),
            ("HOME", "/root"),
        ])
        .unwrap_err();
        for part in [
            "6 problems",
            "\"soon\" is not a duration",
            "PHOTON_TIMEOUTS",
            "did you mean PHOTON_TIMEOUT?",
            "\"many\" is not a whole number",
            "known are PHOTON_URL, ",
            "instance id \"pod 1\" is not usable",
            "it needs PHOTON_GROUP_INDEX beside it",
        ] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }

    #[test]
    fn only_photons_own_variables_are_looked_at() {
        let environment =
            parse(&[("PHOTONS", "x"), ("PHOTON_SIM_SEED", "7"), ("PHOTON_REQUIRE_ENGINES", "1")]).unwrap();
        assert_eq!(environment, Environment::default());
    }

    #[cfg(unix)]
    #[test]
    fn a_value_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let variables = [("PHOTON_INSTANCE".into(), OsString::from_vec(vec![0xff]))];
        assert!(Environment::parse(variables).unwrap_err().to_string().contains("not UTF-8"));
    }

    #[test]
    fn a_group_index_out_of_range_is_refused() {
        let error = parse(&[("PHOTON_GROUP_INDEX", "3"), ("PHOTON_GROUP_COUNT", "3")]).unwrap_err();
        assert!(error.contains("instance 3 of 3 does not exist"), "{error}");
    }

    #[test]
    fn passwords_are_not_repeated() {
        let error = parse(&[("PHOTON_URL", "mysql://me:hunter2@host/db")]).unwrap_err();
        assert!(error.contains("mysql://***@host/db") && !error.contains("hunter2"), "{error}");
    }
}
