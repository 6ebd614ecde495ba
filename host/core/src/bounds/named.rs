//! What the text of a write names of what the bounds ask, found in one pass and without reading it.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, Match, packed};
use serde::Deserialize;

/// By which serde_json hides a text of JSON in a string: what is read as a value is not what is read by types.
pub(super) const PRIVATE: &str = "$serde_json::private::";

/// The words, each with a first letter that none of them has within, so that no two overlap; what they stand for is [`Named::note`]'s.
const WORDS: [&str; 6] = [
    // A letter in the escapes of JSON, where no encoder has any.
    "\\u",
    "\"$serde_json::private::",
    // How each of the host's annotations begins; the slash JSON may write as `\/`.
    "\"operetta.dev",
    "\"ownerReferences",
    "\"finalizers",
    "\"resourceVersion",
];
static FAST: LazyLock<Option<packed::Searcher>> = LazyLock::new(|| packed::Searcher::new(WORDS));
/// Where the processor has nothing to search for several words at once.
static PORTABLE: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| AhoCorasick::new(WORDS).ok());

/// What a text names, at whatever depth.
#[derive(Debug)]
pub(super) struct Named<'a> {
    text: &'a str,
    /// Letters may be in escapes, and so any name hides there: nothing else that is said here holds.
    pub escapes: bool,
    /// A private key may be there.
    pub private: bool,
    /// An annotation of the host's may be there.
    pub told: bool,
    pub owners: Field,
    pub finalizers: Field,
    pub version: Field,
}

/// A field of this name.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Field {
    #[default]
    Nowhere,
    /// Its name ends here.
    Once(usize),
    Often,
}

impl<'a> Named<'a> {
    pub fn of(text: &'a str) -> Self {
        let nowhere = Field::Nowhere;
        let named = Self {
            text,
            escapes: false,
            private: false,
            told: false,
            owners: nowhere,
            finalizers: nowhere,
            version: nowhere,
        };
        match (&*FAST, &*PORTABLE) {
            (Some(words), _) => words.find_iter(text).fold(named, Self::note),
            (None, Some(words)) => words.find_iter(text).fold(named, Self::note),
            // Nobody knows, so that all of it is read.
            (None, None) => Self { escapes: true, private: true, ..named },
        }
    }

    fn note(mut self, word: Match) -> Self {
        let field = match word.pattern().as_usize() {
            0 => {
                self.escapes = true;
                return self;
            }
            1 => {
                self.private = true;
                return self;
            }
            2 => {
                self.told = true;
                return self;
            }
            3 => &mut self.owners,
            4 => &mut self.finalizers,
            _ => &mut self.version,
        };
        // Longer words begin so, too.
        if self.text.as_bytes().get(word.end()) == Some(&b'"') {
            *field = if matches!(field, Field::Nowhere) { Field::Once(word.end() + 1) } else { Field::Often };
        }
        self
    }

    /// The value of the only field of this name in a text without letters in escapes; the default where there is none. None where the name stands there more than once, or as something else.
    pub fn sole<T: Deserialize<'a> + Default>(&self, field: Field) -> Option<T> {
        match field {
            Field::Nowhere => Some(T::default()),
            Field::Often => None,
            Field::Once(end) => {
                let value = self.text.get(end..)?.trim_start().strip_prefix(':')?;
                T::deserialize(&mut serde_json::Deserializer::from_str(value)).ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a text names, and whether both searches see the same.
    fn named(text: &str) -> String {
        let seen = |named: Named| {
            let Named { escapes, private, told, owners, finalizers, version, .. } = named;
            format!("{escapes} {private} {told} {owners:?} {finalizers:?} {version:?}")
        };
        let portable = PORTABLE.as_ref().unwrap().find_iter(text);
        let nothing = || Named::of("");
        let slow = seen(portable.fold(Named { text, ..nothing() }, Named::note));
        assert_eq!(seen(Named::of(text)), slow, "{text}");
        slow
    }

    #[test]
    fn each_word_is_found_wherever_it_stands() {
        const NOTHING: &str = "false false false Nowhere Nowhere Nowhere";
        for (text, seen) in [
            ("", NOTHING),
            ("{}", NOTHING),
            (r#"{"a":"\u0061"}"#, "true false false Nowhere Nowhere Nowhere"),
            (r#"{"$serde_json::private::Number":"1"}"#, "false true false Nowhere Nowhere Nowhere"),
            (r#"{"operetta.dev\/paused":""}"#, "false false true Nowhere Nowhere Nowhere"),
            (r#"{"ownerReferences":[]}"#, "false false false Once(18) Nowhere Nowhere"),
            (r#"{"finalizers" : []}"#, "false false false Nowhere Once(13) Nowhere"),
            (r#"{"resourceVersion":"1","a":"resourceVersion"}"#, "false false false Nowhere Nowhere Often"),
            // Words that only begin so are others.
            (r#"{"ownerReferencesOf":1,"a\nfinalizers":2,"my.operetta.dev":3,"$serde":4}"#, NOTHING),
            // A name that the text breaks off.
            (r#"{"ownerReferences"#, NOTHING),
        ] {
            assert_eq!(named(text), seen, "{text}");
            // Where it stands in a text makes no difference to a search of many bytes at once.
            for padding in 0..70 {
                let text = format!("{}{text}", " ".repeat(padding));
                let is = named(&text);
                assert_eq!(is.split_once('(').is_none(), seen.split_once('(').is_none(), "{text}");
                assert_eq!(
                    is.get(..is.find('(').unwrap_or(is.len())),
                    seen.get(..seen.find('(').unwrap_or(seen.len())),
                    "{text}"
                );
            }
        }
    }
}
