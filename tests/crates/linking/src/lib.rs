//! Case unlinked-handlers: programs that have a crate full of handlers among their dependencies.
