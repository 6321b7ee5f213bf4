//! Whether a stream has settings under which Photon keeps its promises.

use photon_core::error::StoreError;

use super::api::StreamConfig;
use crate::position::refused;

/// Refuses a stream that removes messages by itself, or does not take all of them.
pub(super) fn check(config: &StreamConfig, subjects: &str) -> Result<(), StoreError> {
    let limits = [
        ("max_age", config.max_age, 0),
        ("max_msgs", config.max_msgs, -1),
        ("max_bytes", config.max_bytes, -1),
        ("max_msgs_per_subject", config.max_msgs_per_subject, -1),
    ];
    // A server takes 0 for "no limit", too.
    let limited = limits.iter().find(|(_, value, _)| *value > 0);
    let wrong = if config.subjects != [subjects] {
        Some(format!("it takes the subjects {:?}: let it take {subjects:?} alone", config.subjects))
    } else if config.retention != "limits" {
        Some(format!("its retention is {:?}: make it \"limits\"", config.retention))
    } else if let Some((name, value, unlimited)) = limited {
        // With `discard: new` a full stream refuses what comes instead of removing what is there.
        let refuses = config.discard == "new" && matches!(*name, "max_msgs" | "max_bytes");
        (!refuses).then(|| {
            format!(
                "{name} is {value}, so that it removes events that nobody has handled: set it to {unlimited} and \
                 let Photon trim the topic"
            )
        })
    } else {
        None
    };
    match wrong {
        None => Ok(()),
        Some(wrong) => Err(refused(format!("the stream {:?} cannot be used: {wrong}", config.name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> StreamConfig {
        StreamConfig {
            name: "photon-log-t".to_owned(),
            description: String::new(),
            subjects: vec!["photon.log.t.*".to_owned()],
            retention: "limits".to_owned(),
            storage: "file".to_owned(),
            num_replicas: 1,
            max_consumers: -1,
            max_msgs: -1,
            max_bytes: -1,
            max_age: 0,
            max_msgs_per_subject: -1,
            max_msg_size: -1,
            discard: "new".to_owned(),
            duplicate_window: 0,
            allow_direct: false,
        }
    }

    #[test]
    fn p01_a_stream_that_forgets_is_refused() {
        let subjects = "photon.log.t.*";
        assert!(check(&config(), subjects).is_ok());
        let full = StreamConfig { max_bytes: 1 << 30, ..config() };
        assert!(check(&full, subjects).is_ok(), "it refuses what is too much");
        for (config, part) in [
            (StreamConfig { max_age: 5, ..config() }, "max_age is 5"),
            (StreamConfig { max_msgs_per_subject: 1, ..config() }, "max_msgs_per_subject is 1"),
            (StreamConfig { max_bytes: 9, discard: "old".to_owned(), ..config() }, "max_bytes is 9"),
            (StreamConfig { retention: "workqueue".to_owned(), ..config() }, "retention is \"workqueue\""),
            (StreamConfig { subjects: vec!["photon.>".to_owned()], ..config() }, "takes the subjects"),
        ] {
            let error = check(&config, subjects).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("photon-log-t"), "{error}");
        }
    }
}
