//! What is asked of a server before it is trusted with events.

use std::collections::HashMap;

use photon_core::error::{StoreError, StoreErrorKind};
use redis::FromRedisValue;

use super::error::{Effect, Target, Trouble};
use super::keys::Keys;
use super::link::{Links, Use};
use super::options::{Durability, RedisOptions};
use super::scripts;

/// The layout of the keys that this version writes.
const FORMAT: u64 = 1;
/// The oldest server.
const OLDEST: u32 = 7;
/// The most bytes of a value, unless the server says otherwise.
const DEFAULT_BULK: u64 = 512 << 20;

/// What the server does not take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The most bytes of one value.
    pub(super) value: u64,
}

/// Asks the server what it is and how it is set.
pub(super) async fn check(links: &Links, keys: &Keys, options: &RedisOptions) -> Result<Limits, StoreError> {
    let target = links.connector().target();
    let info = info(links).await?;
    let refuse = |problem: Option<String>| match problem {
        Some(problem) => Err(target.error(StoreErrorKind::Refused, problem)),
        None => Ok(()),
    };
    refuse(wrong_server(&info))?;
    refuse(eviction(&info))?;
    refuse(durability(&info, config(links, "appendfsync").await.as_deref(), options.durability))?;
    if info.get("connected_slaves").is_some_and(|count| count != "0") {
        tracing::warn!(
            server = %options.place(),
            "the Redis server has replicas: when one of them takes over, the last writes may be missing",
        );
    }
    try_commands(links, keys, target).await?;
    check_format(links, keys, target).await?;
    let value = config(links, "proto-max-bulk-len").await.and_then(|value| value.parse().ok());
    Ok(Limits { value: value.unwrap_or(DEFAULT_BULK) })
}

/// What `INFO` says.
async fn info(links: &Links) -> Result<HashMap<String, String>, StoreError> {
    let text: String = ask(links, Effect::Read, redis::cmd("INFO").arg("everything")).await?;
    let pairs = text.lines().filter_map(|line| line.trim().split_once(':'));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// A setting; `None` if it is not told.
async fn config(links: &Links, name: &str) -> Option<String> {
    let mut command = redis::cmd("CONFIG");
    let values: HashMap<String, String> =
        ask(links, Effect::Read, command.arg("GET").arg(name)).await.ok()?;
    values.into_values().next()
}

async fn ask<T: FromRedisValue + Send>(
    links: &Links,
    effect: Effect,
    command: &redis::Cmd,
) -> Result<T, StoreError> {
    links.ask(Use::Control, effect, command).await.map_err(|trouble| own(links, trouble))
}

/// The checks use no topic.
fn own(links: &Links, trouble: Trouble) -> StoreError {
    match trouble {
        Trouble::Store(error) => error,
        other => links.connector().target().strange(format!("the answer {other:?}")),
    }
}

fn wrong_server(info: &HashMap<String, String>) -> Option<String> {
    let get = |name: &str| info.get(name).map_or("", String::as_str);
    let version = get("redis_version");
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < OLDEST) {
        return Some(format!("it has version {version:?}: take Redis {OLDEST} or newer, or Valkey"));
    }
    if get("cluster_enabled") == "1" || get("redis_mode") == "cluster" {
        return Some(
            "it is part of a cluster, which Photon does not support: name a server that is not".to_owned(),
        );
    }
    (get("role") == "slave")
        .then(|| "it is a replica and takes no writes: name the primary in the URL".to_owned())
}

fn eviction(info: &HashMap<String, String>) -> Option<String> {
    let policy = info.get("maxmemory_policy").map_or("noeviction", String::as_str);
    // None of Photon's keys has a time to live, so the volatile policies never take one.
    let keeps = policy == "noeviction" || policy.starts_with("volatile-");
    (!keeps).then(|| {
        format!(
            "its maxmemory-policy {policy} throws away events when memory gets short: CONFIG SET maxmemory-policy \
             noeviction, then publishers are told instead"
        )
    })
}

fn durability(info: &HashMap<String, String>, fsync: Option<&str>, asked: Durability) -> Option<String> {
    if asked == Durability::Memory {
        return None;
    }
    if info.get("aof_enabled").map(String::as_str) != Some("1") {
        return Some(
            "it keeps no append-only file, so that what was published is lost when it ends: CONFIG SET appendonly \
             yes, or say durability=memory if that may happen"
                .to_owned(),
        );
    }
    match fsync {
        Some("always") => None,
        Some("everysec") | None if asked == Durability::EverySecond => None,
        Some(other) => Some(format!(
            "it answers before a write is on the disk (appendfsync {other}), so that the last ones are lost with the \
             power: CONFIG SET appendfsync always, or say durability={} if that may happen",
            if other == "everysec" { "everysec" } else { "memory" }
        )),
        None => Some(
            "it does not tell whether a write is on the disk when it answers: allow CONFIG GET to the user, or say \
             durability=everysec if the last ones may be lost with the power"
                .to_owned(),
        ),
    }
}

/// Finds out whether the user may do everything, and whether every command has its name.
async fn try_commands(links: &Links, keys: &Keys, target: &Target) -> Result<(), StoreError> {
    let refusal: Vec<String> = links
        .run(Use::Control, Effect::Write, &scripts::PROBE, &[keys.probe()], |_| {})
        .await
        .map_err(|trouble| own(links, trouble))?;
    let [command, said] = &refusal[..] else { return Ok(()) };
    let (kind, next) = if said.contains("OOM") {
        (StoreErrorKind::Full, "its memory is full: raise maxmemory or free some")
    } else if said.contains("Unknown") {
        (StoreErrorKind::Refused, "give the command its name back (rename-command)")
    } else {
        (StoreErrorKind::Denied, "allow it to the user, for all keys of the prefix (ACL SETUSER)")
    };
    let prefix = keys.prefix();
    Err(target
        .error(kind, format!("{command} on keys of the prefix {prefix:?} is not possible: {said}; {next}")))
}

async fn check_format(links: &Links, keys: &Keys, target: &Target) -> Result<(), StoreError> {
    let key = keys.format();
    let (_, format): (i64, Option<String>) = links
        .ask(
            Use::Control,
            Effect::Write,
            redis::pipe().cmd("SETNX").arg(&key).arg(FORMAT).cmd("GET").arg(&key),
        )
        .await
        .map_err(|trouble| own(links, trouble))?;
    let format = format.unwrap_or_default();
    if format == FORMAT.to_string() {
        return Ok(());
    }
    let reason = format!(
        "the keys of the prefix {:?} have the format {format:?}, this version knows {FORMAT}: take a newer version, \
         or give Photon a prefix of its own with prefix=NAME",
        keys.prefix()
    );
    Err(target.error(StoreErrorKind::Corrupt, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn p01_a_server_that_keeps_less_than_is_asked_for_is_refused() {
        let (with, without) = (info(&[("aof_enabled", "1")]), info(&[("aof_enabled", "0")]));
        for (info, fsync, asked, refused) in [
            (&with, Some("always"), Durability::Always, None),
            (&with, Some("everysec"), Durability::Always, Some("durability=everysec")),
            (&with, Some("no"), Durability::Always, Some("durability=memory")),
            (&with, None, Durability::Always, Some("CONFIG GET")),
            (&without, Some("always"), Durability::Always, Some("appendonly yes")),
            (&with, Some("always"), Durability::EverySecond, None),
            (&with, Some("everysec"), Durability::EverySecond, None),
            (&with, Some("no"), Durability::EverySecond, Some("durability=memory")),
            (&with, None, Durability::EverySecond, None),
            (&without, None, Durability::EverySecond, Some("durability=memory")),
            (&without, None, Durability::Memory, None),
        ] {
            let problem = durability(info, fsync, asked);
            match refused {
                None => assert_eq!(problem, None, "{fsync:?} {asked:?}"),
                Some(part) => assert!(problem.clone().unwrap_or_default().contains(part), "{problem:?}"),
            }
        }
    }

    #[test]
    fn p01_a_server_that_evicts_keys_is_refused() {
        assert_eq!(eviction(&info(&[("maxmemory_policy", "noeviction")])), None);
        assert_eq!(eviction(&info(&[("maxmemory_policy", "volatile-lru")])), None);
        assert!(eviction(&info(&[("maxmemory_policy", "allkeys-lru")])).unwrap().contains("allkeys-lru"));
    }

    #[test]
    fn servers_that_do_not_fit_are_refused() {
        let server =
            |version, mode, role| info(&[("redis_version", version), ("redis_mode", mode), ("role", role)]);
        assert_eq!(wrong_server(&server("7.0.15", "standalone", "master")), None);
        assert_eq!(wrong_server(&server("7.2.4", "sentinel-less", "master")), None);
        for (server, part) in [
            (server("6.2.14", "standalone", "master"), "6.2.14"),
            (server("", "standalone", "master"), "newer"),
            (server("7.4.0", "cluster", "master"), "cluster"),
            (server("8.0.0", "standalone", "slave"), "replica"),
        ] {
            assert!(wrong_server(&server).unwrap().contains(part));
        }
    }
}
