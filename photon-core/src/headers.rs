//! Headers: named bytes that travel with an event.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// The header that names the encoding of the payload.
pub const CONTENT_TYPE: &str = "content-type";
/// The header that carries the publisher's actor, see [`crate::identity`].
pub const ACTOR: &str = "photon-actor";
/// The longest header name, in bytes.
pub const MAX_HEADER_NAME_BYTES: usize = 256;
/// The most that names and values of one event may hold together, in bytes (64 KiB).
pub const MAX_HEADERS_BYTES: usize = 64 * 1024;

/// The headers of an event: an ordered list of unique names with values of any bytes.
///
/// Cloning is cheap, and an event without headers allocates nothing for them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Option<Arc<Vec<Entry>>>);

type Entry = (Box<str>, Bytes);

impl Headers {
    /// No headers.
    pub const fn new() -> Self {
        Self(None)
    }

    /// The value of `name` as text; `None` when it is missing or not UTF-8.
    pub fn get(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get_bytes(name)?).ok()
    }

    /// The value of `name`.
    pub fn get_bytes(&self, name: &str) -> Option<&Bytes> {
        self.entries().iter().find(|(n, _)| **n == *name).map(|(_, value)| value)
    }

    /// Sets `name` to `value`; an earlier value is replaced.
    pub fn insert(&mut self, name: impl Into<Box<str>>, value: impl Into<Bytes>) {
        let (name, value) = (name.into(), value.into());
        let entries = Arc::make_mut(self.0.get_or_insert_default());
        match entries.iter_mut().find(|(n, _)| *n == name) {
            Some(entry) => entry.1 = value,
            None => entries.push((name, value)),
        }
    }

    /// All names and values, in the order they were set.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Bytes)> {
        self.entries().iter().map(|(name, value)| (&**name, value))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    /// What is wrong with them for publishing, or `None`: an empty or over-long name, or too much in all.
    pub fn problem(&self) -> Option<String> {
        let mut total = 0;
        for (name, value) in self.iter() {
            if name.is_empty() || name.len() > MAX_HEADER_NAME_BYTES {
                return Some(format!(
                    "a header name has {} bytes, 1 to {MAX_HEADER_NAME_BYTES} are allowed",
                    name.len()
                ));
            }
            total += name.len() + value.len();
        }
        (total > MAX_HEADERS_BYTES)
            .then(|| format!("the headers hold {total} bytes, at most {MAX_HEADERS_BYTES} are allowed"))
    }

    fn entries(&self) -> &[Entry] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

impl fmt::Debug for Headers {
    /// Names only: values may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

impl<N: Into<Box<str>>, V: Into<Bytes>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(entries: I) -> Self {
        let mut headers = Headers::new();
        for (name, value) in entries {
            headers.insert(name, value);
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_are_a_map_that_keeps_the_order(
            entries in proptest::collection::vec(("[a-c]{1,2}", any::<Vec<u8>>()), 0..20),
        ) {
            let headers: Headers = entries.clone().into_iter().collect();
            let mut naive: Vec<(String, Vec<u8>)> = Vec::new();
            for (name, value) in entries {
                match naive.iter_mut().find(|(n, _)| *n == name) {
                    Some(entry) => entry.1 = value,
                    None => naive.push((name, value)),
                }
            }
            let seen: Vec<_> = headers.iter().map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
            prop_assert_eq!(&seen, &naive);
            prop_assert_eq!((headers.len(), headers.is_empty()), (naive.len(), naive.is_empty()));
            for (name, value) in &naive {
                prop_assert_eq!(headers.get_bytes(name).map(|bytes| bytes.to_vec()), Some(value.clone()));
                prop_assert_eq!(headers.get(name), std::str::from_utf8(value).ok());
            }
        }
    }

    #[test]
    fn a_copy_is_not_changed_by_its_original() {
        let mut headers: Headers = [("a", "1")].into_iter().collect();
        let copy = headers.clone();
        headers.insert("a", "2");
        headers.insert("b", "3");
        assert_eq!((copy.get("a"), copy.len()), (Some("1"), 1));
    }

    #[test]
    fn p11_limits_count_names_and_values() {
        let one =
            |name: usize, value: usize| Headers::from_iter([("n".repeat(name), "v".repeat(value))]).problem();
        assert_eq!(one(1, 0), None);
        assert_eq!(one(MAX_HEADER_NAME_BYTES, MAX_HEADERS_BYTES - MAX_HEADER_NAME_BYTES), None);
        assert_eq!(one(0, 1).unwrap(), "a header name has 0 bytes, 1 to 256 are allowed");
        assert_eq!(one(257, 1).unwrap(), "a header name has 257 bytes, 1 to 256 are allowed");
        assert_eq!(
            one(1, MAX_HEADERS_BYTES).unwrap(),
            "the headers hold 65537 bytes, at most 65536 are allowed"
        );
    }

    #[test]
    fn values_stay_out_of_debug() {
        let headers = Headers::from_iter([("authorization", "secret")]);
        assert_eq!(format!("{headers:?}"), "[\"authorization\"]");
    }
}
