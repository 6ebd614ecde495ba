//! Label selectors, evaluated on cached objects: equality, sets and existence, as `kubectl -l` takes them.
//!
//! **What is not understood is not guessed at**: such a selector goes to the API server.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A selector: all of its requirements must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl Requirements {
    /// Parses it; none where this module does not know its form.
    pub fn parse(text: &str) -> Option<Self> {
        let requirements: Option<Vec<_>> = split(text)?.into_iter().map(|part| requirement(part.trim())).collect();
        requirements.map(Self)
    }

    /// Whether an object, given as JSON, has such labels.
    pub fn matches(&self, json: &str) -> bool {
        #[derive(Deserialize)]
        struct Labelled {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        struct Metadata {
            #[serde(default)]
            labels: Option<BTreeMap<String, String>>,
        }
        let labels = serde_json::from_str::<Labelled>(json).ok().and_then(|l| l.metadata.labels).unwrap_or_default();
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels.get(key).is_some_and(|v| values.contains(v)),
            Requirement::NotIn(key, values) => labels.get(key).is_none_or(|v| !values.contains(v)),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::Absent(key) => !labels.contains_key(key),
        })
    }
}

/// At commas outside of parentheses.
fn split(text: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut rest, mut open, mut begin) = (text, false, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' if !open => open = true,
            ')' if open => open = false,
            '(' | ')' => return None,
            ',' if !open => {
                parts.push(text.get(begin..at)?);
                begin = at + 1;
                rest = text.get(begin..)?;
            }
            _ => {}
        }
    }
    if !rest.trim().is_empty() || !parts.is_empty() {
        parts.push(rest);
    }
    (!open).then_some(parts)
}

fn requirement(part: &str) -> Option<Requirement> {
    if let Some((head, values)) = part.strip_suffix(')').and_then(|p| p.split_once('(')) {
        let (name, operator) = head.trim().rsplit_once(char::is_whitespace)?;
        let values: Option<Vec<_>> = values.split(',').map(|v| value(v.trim())).collect();
        return match operator {
            "in" => Some(Requirement::In(key(name.trim())?, values?)),
            "notin" => Some(Requirement::NotIn(key(name.trim())?, values?)),
            _ => None,
        };
    }
    if let Some((name, wanted)) = part.split_once("!=") {
        return Some(Requirement::NotIn(key(name.trim())?, vec![value(wanted.trim())?]));
    }
    if let Some((name, wanted)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Some(Requirement::In(key(name.trim())?, vec![value(wanted.trim())?]));
    }
    match part.strip_prefix('!') {
        Some(name) => Some(Requirement::Absent(key(name.trim())?)),
        None => Some(Requirement::Exists(key(part)?)),
    }
}

fn key(text: &str) -> Option<String> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/');
    (!text.is_empty() && text.bytes().all(fine)).then(|| text.to_owned())
}

fn value(text: &str) -> Option<String> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.bytes().all(fine).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str, labels: &str) -> Option<bool> {
        Requirements::parse(selector)
            .map(|s| s.matches(&format!("{{\"metadata\":{{\"name\":\"x\",\"labels\":{labels}}}}}")))
    }

    #[test]
    fn selectors_mean_what_they_mean_to_kubectl() {
        let labels = r#"{"app":"web","tier":"","a.b/c":"1"}"#;
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web", true),
            ("app = web , tier=", true),
            ("app!=web", false),
            ("none!=web", true),
            ("app in (web, api)", true),
            ("app in (api)", false),
            ("app notin (api)", true),
            ("none notin (api)", true),
            ("app", true),
            ("!app", false),
            ("none", false),
            ("!none,a.b/c=1", true),
            ("app=web,tier=front", false),
        ] {
            assert_eq!(matches(selector, labels), Some(expected), "{selector:?}");
        }
        assert_eq!(matches("app", "null"), Some(false));
    }

    #[test]
    fn what_is_not_understood_is_left_to_the_api_server() {
        for selector in ["a>1", "a in (b", "a)b(", "a b", "in (x)", "a=b=c", "=", ",", "a,,b", "a like (b)", "ä=1"] {
            assert_eq!(Requirements::parse(selector), None, "{selector:?}");
        }
    }
}
