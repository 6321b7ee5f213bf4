//! The event: a commit, with all the odd things that real ones hold.

use std::fmt;

use photon::prelude::*;

/// How much of a message travels in the event, in bytes. Some commits quote whole files.
const MESSAGE_BYTES: usize = 32 * 1024;
/// How much of an author's name does.
const AUTHOR_BYTES: usize = 1024;

/// A commit. Commits of one author are handled in the order in which they were published.
#[topic(name = "git.commits", key = author, shards = 16)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// The name that git gave it.
    pub hash: String,
    /// Name and e-mail: `Ann <ann@example.org>`.
    pub author: Text,
    /// When it was written, in seconds since 1970; `None` if that cannot be read.
    pub time: Option<i64>,
    /// The encoding that the commit declares; UTF-8 if none.
    pub encoding: Option<String>,
    /// The beginning of the message.
    pub message: Text,
    /// The length of the whole commit object.
    pub bytes: u64,
}

/// Text as git has it: nearly always UTF-8, and bytes where it is not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Text {
    Utf8(String),
    Bytes(Vec<u8>),
}

impl Commit {
    /// Reads a commit object: header lines, an empty line, the message. `object` may be cut at its end; `bytes`
    /// is its whole length.
    pub fn parse(hash: &str, object: &[u8], bytes: u64) -> Self {
        let end = object.windows(2).position(|two| two == b"\n\n");
        let (header, message) = match end {
            Some(end) => (&object[..end], &object[end + 2..]),
            None => (object, &[][..]),
        };
        let author = header_line(header, b"author ").unwrap_or_default();
        // "Ann <ann@example.org> 1700000000 +0100"
        let end_of_name = author.iter().rposition(|&byte| byte == b'>').map_or(author.len(), |at| at + 1);
        let (author, time) = author.split_at(end_of_name);
        let time = time.split(|&byte| byte == b' ').find(|part| !part.is_empty());
        Self {
            hash: hash.to_owned(),
            author: Text::cut(author, AUTHOR_BYTES),
            time: time.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()),
            encoding: header_line(header, b"encoding ")
                .map(|name| String::from_utf8_lossy(name).into_owned()),
            message: Text::cut(message, MESSAGE_BYTES),
            bytes,
        }
    }
}

fn header_line<'a>(header: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    header.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))
}

impl Text {
    /// The first `limit` bytes; a letter that is cut in two is left out.
    fn cut(bytes: &[u8], limit: usize) -> Self {
        let cut = &bytes[..bytes.len().min(limit)];
        match std::str::from_utf8(cut) {
            Ok(text) => Text::Utf8(text.to_owned()),
            Err(error) if cut.len() < bytes.len() && error.error_len().is_none() => {
                Text::Utf8(String::from_utf8_lossy(&cut[..error.valid_up_to()]).into_owned())
            }
            Err(_) => Text::Bytes(cut.to_owned()),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Text::Utf8(text) => text.as_bytes(),
            Text::Bytes(bytes) => bytes,
        }
    }
}

/// Any bytes can be a key: two authors whose names only look alike stay two.
impl ToKey for Text {
    fn to_key(&self) -> Option<Key> {
        self.as_bytes().to_key()
    }
}

impl fmt::Display for Text {
    /// What can be shown of it, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(self.as_bytes());
        text.chars().filter(|letter| !letter.is_control()).try_for_each(|letter| write!(f, "{letter}"))
    }
}

#[cfg(test)]
mod tests {
    use photon::Topic;

    use super::*;

    fn parse(object: &[u8]) -> Commit {
        Commit::parse("c0ffee", object, object.len() as u64)
    }

    #[test]
    fn a_commit_is_read_as_git_stores_it() {
        let commit = parse(
            b"tree 12\nparent 34\nauthor Ann <ann@example.org> 1700000000 +0100\n\
              committer Bob <bob@example.org> 1700000001 +0000\n\
              gpgsig -----BEGIN-----\n \n author Eve <eve@example.org> 1 +0000\n\nsubject\n\nauthor Mallory <> 2\n",
        );
        assert_eq!(commit.author, Text::Utf8("Ann <ann@example.org>".into()));
        assert_eq!((commit.time, commit.encoding), (Some(1_700_000_000), None));
        assert_eq!(commit.message, Text::Utf8("subject\n\nauthor Mallory <> 2\n".into()));
    }

    #[test]
    fn odd_commits_are_kept_as_they_are() {
        let nameless = parse(b"tree 12\nauthor  <> -5 +0000\nencoding KOI8-R\n\n");
        assert_eq!(nameless.author, Text::Utf8(" <>".into()));
        assert_eq!((nameless.time, nameless.encoding.as_deref()), (Some(-5), Some("KOI8-R")));
        assert_eq!(nameless.message, Text::Utf8(String::new()));

        let bytes = parse(b"author J\xf6rg <j> soon\n\nGr\xfc\xdfe\0\n");
        assert_eq!(bytes.author, Text::Bytes(b"J\xf6rg <j>".to_vec()));
        assert_eq!((bytes.time, bytes.message), (None, Text::Bytes(b"Gr\xfc\xdfe\0\n".to_vec())));

        for broken in [b"".as_slice(), b"\n\n", b"author", b"author \n\nx", b"author > > 7"] {
            parse(broken);
        }
    }

    #[test]
    fn long_texts_are_cut_between_letters() {
        assert_eq!(Text::cut("xé".as_bytes(), 2), Text::Utf8("x".into()));
        assert_eq!(Text::cut("xé".as_bytes(), 3), Text::Utf8("xé".into()));
        // Not cut, but broken.
        assert_eq!(Text::cut(b"x\xc3", 2), Text::Bytes(b"x\xc3".to_vec()));
        assert_eq!(Text::cut(b"\xffabc", 2), Text::Bytes(b"\xffa".to_vec()));
    }

    #[test]
    fn a_commit_survives_the_way_through_the_log() {
        let commit = parse(b"author \xff <x> 7 +0000\n\nline\x1b[31m\n");
        let mut payload = Vec::new();
        photon::codec::encode_json(&commit, &mut payload).unwrap();
        assert!(payload.starts_with(b"{\"hash\":\"c0ffee\",\"author\":[255,32,"), "{payload:?}");
        assert_eq!(commit.message.to_string(), "line[31m");
        assert_eq!(Topic::key(&commit).unwrap().as_bytes(), commit.author.as_bytes());
    }
}
