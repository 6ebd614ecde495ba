//! Label selectors, evaluated by the host.

use operetta_cluster::selector::Requirements;
use operetta_core::name::LabelSelector;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Question {
    selector: String,
    labels: Value,
}

/// A selector means all of its requirements; each of them or its opposite holds, and never both.
pub fn matches(data: &[u8]) {
    let Ok(Question { selector, labels }) = serde_json::from_slice(data) else { return };
    let object = json!({"metadata": {"name": "x", "labels": labels}}).to_string();
    let matches = |text: &str| Requirements::parse(text).map(|requirements| requirements.matches(&object));
    let Some(whole) = matches(&selector) else { return };
    assert!(Requirements::parse(&selector) == Requirements::parse(&format!(" {selector} ")));
    if selector.trim().is_empty() {
        assert!(whole);
        return;
    }
    // Commas between parentheses belong to a list.
    let mut open = false;
    let parts: Vec<_> = selector
        .split(|c| {
            open = (open || c == '(') && c != ')';
            c == ',' && !open
        })
        .collect();
    let each: Option<Vec<bool>> = parts.iter().map(|part| matches(part)).collect();
    let each = each.unwrap_or_else(|| panic!("{selector:?} is understood, and a part of it is not"));
    assert_eq!(whole, each.iter().all(|yes| *yes), "{selector:?}");
    for (part, held) in parts.into_iter().zip(each) {
        let Some(opposite) = opposite(part) else { continue };
        assert_eq!(matches(&opposite), Some(!held), "{part:?} and {opposite:?} on {object}");
    }
    // What a plugin may write at all is one line of ASCII; what is understood is no more than that.
    assert!(
        LabelSelector::parse(&selector).is_ok() || selector.len() > 4_096 || selector.contains(char::is_whitespace),
        "{selector:?}"
    );
}

fn opposite(part: &str) -> Option<String> {
    let part = part.trim();
    if let Some((head, list)) = part.split_once('(') {
        let (key, operator) = head.trim().rsplit_once(char::is_whitespace)?;
        let other = if operator == "in" { "notin" } else { "in" };
        return Some(format!("{key} {other} ({list}"));
    }
    if let Some((key, value)) = part.split_once("!=") {
        return Some(format!("{key}={value}"));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Some(format!("{key}!={value}"));
    }
    Some(part.strip_prefix('!').map_or_else(|| format!("!{part}"), str::to_owned))
}
