//! Two lists side by side.

use std::fmt::Write;

/// One line of a comparison.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<T> {
    Both(T),
    Expected(T),
    Found(T),
}

/// Compares two lists whose order counts: what they have in common in the same order is found in both.
pub(super) fn in_order<'a, T: PartialEq>(expected: &'a [T], found: &'a [T]) -> Vec<Line<&'a T>> {
    // common[i][j]: how much expected[i..] and found[j..] have in common.
    let mut common = vec![vec![0_usize; found.len() + 1]; expected.len() + 1];
    for i in (0..expected.len()).rev() {
        for j in (0..found.len()).rev() {
            common[i][j] = if expected[i] == found[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines = Vec::new();
    while i < expected.len() || j < found.len() {
        if i < expected.len() && j < found.len() && expected[i] == found[j] {
            lines.push(Line::Both(&expected[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == found.len() || (i < expected.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(Line::Expected(&expected[i]));
            i += 1;
        } else {
            lines.push(Line::Found(&found[j]));
            j += 1;
        }
    }
    lines
}

/// Compares two lists whose order does not count.
pub(super) fn in_any_order<'a, T: PartialEq>(expected: &'a [T], found: &'a [T]) -> Vec<Line<&'a T>> {
    let mut left: Vec<&T> = found.iter().collect();
    let mut lines = Vec::new();
    for value in expected {
        match left.iter().position(|found| *found == value) {
            Some(place) => {
                left.remove(place);
                lines.push(Line::Both(value));
            }
            None => lines.push(Line::Expected(value)),
        }
    }
    lines.extend(left.into_iter().map(Line::Found));
    lines
}

pub(super) fn is_equal<T>(lines: &[Line<T>]) -> bool {
    lines.iter().all(|line| matches!(line, Line::Both(_)))
}

/// The lines as text: `-` for what was expected, `+` for what was found.
pub(super) fn write<T: std::fmt::Debug>(out: &mut String, lines: &[Line<T>]) {
    for line in lines {
        let (mark, value) = match line {
            Line::Both(value) => (' ', value),
            Line::Expected(value) => ('-', value),
            Line::Found(value) => ('+', value),
        };
        // Writing to a text cannot fail.
        let _ = writeln!(out, "  {mark} {value:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::Line::{Both, Expected, Found};
    use super::*;

    #[test]
    fn what_stands_in_both_in_one_order_is_common() {
        assert_eq!(in_order(&[1, 2, 3], &[1, 3, 4]), [Both(&1), Expected(&2), Both(&3), Found(&4)]);
        assert_eq!(in_order(&[1, 2], &[2, 1]), [Expected(&1), Both(&2), Found(&1)]);
        assert_eq!(in_order(&[], &[1]), [Found(&1)]);
        assert!(is_equal(&in_order(&[1, 1], &[1, 1])));
        assert!(!is_equal(&in_order(&[1], &[1, 1])));
    }

    #[test]
    fn without_an_order_only_the_number_counts() {
        assert!(is_equal(&in_any_order(&[1, 2, 2], &[2, 1, 2])));
        assert_eq!(in_any_order(&[1, 2], &[2, 2]), [Expected(&1), Both(&2), Found(&2)]);
    }
}
