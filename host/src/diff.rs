//! Two texts compared line by line, as `diff -u` shows it. Pure.

use std::collections::HashMap;

use dissimilar::Chunk;

use crate::output::one_line;

/// Lines around a change that are shown, as `diff -u` does.
const CONTEXT: usize = 3;
/// A private-use plane of Unicode: characters that stand for lines.
const FIRST: u32 = 0xF_0000;

/// One line on its way from the old to the new text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line<'a> {
    Same(&'a str),
    Gone(&'a str),
    New(&'a str),
}

/// The hunks in which both differ, under a heading; empty where they do not.
pub(crate) fn unified(name: &str, old: &str, new: &str) -> String {
    let lines = compare(old, new);
    let changed: Vec<_> =
        lines.iter().enumerate().filter(|(_, line)| !matches!(line, Line::Same(_))).map(|(at, _)| at).collect();
    let mut out = String::new();
    for hunk in changed.chunk_by(|one, next| next - one <= 2 * CONTEXT) {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let (from, to) = (first.saturating_sub(CONTEXT), (last + CONTEXT + 1).min(lines.len()));
        let (before, within) = (lines.get(..from).unwrap_or_default(), lines.get(from..to).unwrap_or_default());
        if out.is_empty() {
            out = format!("--- live/{name}\n+++ new/{name}\n");
        }
        let old = span(before, within, |line| !matches!(line, Line::New(_)));
        let new = span(before, within, |line| !matches!(line, Line::Gone(_)));
        out.push_str(&format!("@@ -{old} +{new} @@\n"));
        for line in within {
            let (sign, text) = match line {
                Line::Same(text) => (' ', text),
                Line::Gone(text) => ('-', text),
                Line::New(text) => ('+', text),
            };
            // What a plugin brings is a stranger's.
            out.push_str(&format!("{sign}{}\n", one_line(text)));
        }
    }
    out
}

/// `FIRST,COUNT` of the lines of one of the texts; the first is 0 where there are none.
fn span(before: &[Line<'_>], within: &[Line<'_>], is: impl Fn(&Line<'_>) -> bool) -> String {
    let count = |lines: &[Line<'_>]| lines.iter().filter(|line| is(line)).count();
    let length = count(within);
    format!("{},{length}", count(before) + usize::from(length > 0))
}

/// Each line a character, so that whole lines are compared.
fn compare<'a>(old: &'a str, new: &'a str) -> Vec<Line<'a>> {
    let mut known: HashMap<&str, char> = HashMap::new();
    let mut texts: Vec<&str> = Vec::new();
    let mut coded = |text: &'a str| -> String {
        let code = |line: &'a str| {
            *known.entry(line).or_insert_with(|| {
                let next = FIRST + u32::try_from(texts.len()).unwrap_or(u32::MAX - FIRST);
                texts.push(line);
                // More different lines than a CRD can have; they would be taken for each other.
                char::from_u32(next).unwrap_or(char::REPLACEMENT_CHARACTER)
            })
        };
        text.lines().map(code).collect()
    };
    let (old, new) = (coded(old), coded(new));
    let line = |c: char| texts.get((c as u32).wrapping_sub(FIRST) as usize).copied().unwrap_or_default();
    let mut lines = Vec::new();
    for chunk in dissimilar::diff(&old, &new) {
        match chunk {
            Chunk::Equal(text) => lines.extend(text.chars().map(|c| Line::Same(line(c)))),
            Chunk::Delete(text) => lines.extend(text.chars().map(|c| Line::Gone(line(c)))),
            Chunk::Insert(text) => lines.extend(text.chars().map(|c| Line::New(line(c)))),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn numbers(range: std::ops::RangeInclusive<u32>) -> String {
        range.fold(String::new(), |text, n| text + &format!("line {n}\n"))
    }

    #[test]
    fn equal_texts_have_no_difference() {
        assert_eq!(unified("x", &numbers(1..=9), &numbers(1..=9)), "");
        assert_eq!(unified("x", "", ""), "");
    }

    #[test]
    fn changes_stand_among_the_lines_around_them_and_far_ones_apart() {
        let old = numbers(1..=20);
        let new =
            old.replace("line 2\n", "").replace("line 5\n", "line five\n").replace("line 19\n", "line 19\nmore\n");
        expect![[r"
            --- live/x
            +++ new/x
            @@ -1,8 +1,7 @@
             line 1
            -line 2
             line 3
             line 4
            -line 5
            +line five
             line 6
             line 7
             line 8
            @@ -17,4 +16,5 @@
             line 17
             line 18
             line 19
            +more
             line 20
        "]]
        .assert_eq(&unified("x", &old, &new));
    }

    #[test]
    fn a_line_does_to_a_terminal_nothing_but_be_shown() {
        let shown = unified("x", "", "description: \u{1b}[2J\u{202e}a\n");
        assert!(shown.ends_with("+description: \\u{1b}[2J\\u{202e}a\n"), "{shown}");
    }

    #[test]
    fn what_is_new_or_gone_altogether_is_all_of_it() {
        expect![[r"
            --- live/x
            +++ new/x
            @@ -0,0 +1,2 @@
            +line 1
            +line 2
        "]]
        .assert_eq(&unified("x", "", &numbers(1..=2)));
        assert!(unified("x", &numbers(1..=2), "").contains("@@ -1,2 +0,0 @@\n-line 1\n"));
    }
}
