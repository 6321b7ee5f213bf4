//! Whether a handler's transaction may settle its delivery, and how.

/// What the store holds about the place of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// No row.
    Nothing,
    /// The mark of one that ended.
    Mark,
    /// A stored delivery of this version that is parked or waiting.
    Live(u64),
    /// A dead letter.
    Dead,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Write a mark: the delivery was read from the log and nothing is stored of it.
    Mark,
    /// End the stored delivery.
    End,
    /// An earlier attempt settled it: the transaction must not take effect.
    AlreadySettled,
    /// It is in other hands now: the transaction must not take effect.
    Overtaken,
}

/// Decides for an attempt at the delivery whose row had the version `row`, 0 for one read from the log. `covered`:
/// whether the stored checkpoint counts the place as settled, which it does for every stored delivery.
pub fn decide(row: u64, covered: bool, known: Known) -> Decision {
    match (row, known) {
        (0, Known::Nothing) if !covered => Decision::Mark,
        (_, Known::Mark | Known::Nothing) => Decision::AlreadySettled,
        (1.., Known::Live(version)) if version == row => Decision::End,
        (_, Known::Live(_) | Known::Dead) => Decision::Overtaken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of any number of attempts at one delivery, late ones among them, at most one takes effect.
    #[test]
    fn p04_a_delivery_is_settled_once() {
        for covered in [false, true] {
            assert_ne!(decide(0, covered, Known::Mark), Decision::Mark);
            assert_eq!(decide(0, true, Known::Nothing), Decision::AlreadySettled);
        }
        assert_eq!(decide(0, false, Known::Nothing), Decision::Mark);
        assert_eq!(decide(3, true, Known::Live(3)), Decision::End);
        // After that end, with a mark and without.
        assert_eq!(decide(3, true, Known::Nothing), Decision::AlreadySettled);
        assert_eq!(decide(3, false, Known::Mark), Decision::AlreadySettled);
    }

    /// A late attempt does not end what was parked, given up or redriven after it.
    #[test]
    fn p07_a_late_attempt_takes_no_effect() {
        for known in [Known::Live(1), Known::Live(4), Known::Dead] {
            for covered in [false, true] {
                assert_eq!(decide(0, covered, known), Decision::Overtaken);
                assert_eq!(decide(3, covered, known), Decision::Overtaken);
            }
        }
    }
}
