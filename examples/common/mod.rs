//! What the examples have in common: their command line.
#![allow(unreachable_pub)]

/// The engine that `--engine URL` names, or `default`.
///
/// Ends the process with a word of help if the command line holds anything else.
pub fn engine_or(default: &str) -> String {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next(), arguments.next()) {
        (None, ..) => default.to_owned(),
        (Some("--engine"), Some(url), None) => url,
        _ => {
            eprintln!("usage: [--engine URL], such as --engine sqlite:orders.db; default: {default}");
            std::process::exit(2)
        }
    }
}
