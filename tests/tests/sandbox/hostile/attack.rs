//! An attack, as its file says it.

use std::{collections::BTreeSet, fmt};

use serde::Deserialize;
use serde_json::Value;

use super::bombs;
use crate::setup::{Crash, imports, ordinary};

/// One attack.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Attack {
    /// What is tried.
    #[serde(rename = "attack")]
    pub name: String,
    /// What stops it.
    pub stopped_by: String,
    #[serde(default)]
    pub grants: Policy,
    /// On an API server, by all that lies between, instead of on a port that only writes down what reached it.
    #[serde(default)]
    pub cluster: bool,
    pub guest: Guest,
    pub expect: Expect,
    /// What counts it, and nothing else does.
    #[serde(default)]
    pub counted: BTreeSet<Counted>,
}

/// What an effect counts, as `denials/GRANT` or `limits/LIMIT`. A limit that ends the reconcile is counted by its end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub enum Counted {
    /// A denial, by the grant that it lacked.
    Denial(String),
    /// A limit that was met.
    Limit(String),
}

impl Counted {
    /// The metric, as the administrator finds it.
    fn metric(&self) -> String {
        match self {
            Self::Denial(grant) => format!("operetta_denials_total{{grant=\"{grant}\"}}"),
            Self::Limit(limit) => format!("operetta_limit_exceeded_total{{limit=\"{limit}\"}}"),
        }
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denial(grant) => write!(f, "denials/{grant}"),
            Self::Limit(limit) => write!(f, "limits/{limit}"),
        }
    }
}

impl TryFrom<String> for Counted {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.split_once('/') {
            Some(("denials", grant)) => Ok(Self::Denial(grant.to_owned())),
            Some(("limits", limit)) => Ok(Self::Limit(limit.to_owned())),
            _ => Err(format!("{text} is neither denials/GRANT nor limits/LIMIT")),
        }
    }
}

impl Attack {
    /// What the administrator sees, as the table says it.
    pub fn seen(&self) -> String {
        let mut seen = vec![self.expect.seen()];
        seen.extend(self.counted.iter().map(|counted| format!("`{}`", counted.metric())));
        seen.join("; ")
    }
}

/// What the plugin was granted.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub enum Policy {
    /// Whatever it asks for, so that nothing but what is under attack can stop it.
    #[default]
    Everything,
    /// ConfigMaps of the namespace `default`.
    Narrow,
}

/// Who tries it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Guest {
    /// The operator that is WAT, with parts of it filled in.
    Wat(Box<Parts>),
    /// A whole component as text.
    Component(String),
    /// Made by [`bombs::make`].
    Bytes(String),
    /// The Rust guest that calls every import as it is told.
    Imports {
        /// Which import.
        command: String,
        /// With what.
        #[serde(default)]
        argument: Value,
    },
    /// The Rust guest for `wasm32-wasip2`: what it tries, and with what.
    Ordinary(String, #[serde(default)] String),
}

/// See `tests/guests/crash.wat`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Parts {
    version: Option<String>,
    memory: Option<String>,
    manifest: Option<String>,
    start: String,
    on_manifest: String,
    on_reconcile: String,
    more_imports: String,
    more_core_imports: String,
    more_instances: String,
    more_after: String,
}

/// How it must end.
#[derive(Deserialize)]
#[serde(try_from = "Written")]
pub enum Expect {
    /// It does not load: the phase, and words of the error.
    Load(String, String),
    /// The reconcile fails: the reason, and words of the error.
    Ends(String, String),
    /// The guest gets an answer with these words and without those. It reaches a port by calls with that word and by no others, or by none where there is no word; something stands in
    /// the log; and the loop guard knows of writes without an answer.
    Answers { answers: String, hides: Vec<String>, reaches: Option<String>, logs: Option<String>, unanswered: bool },
    /// Nothing happens.
    Harmless,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    load: Option<(String, String)>,
    ends: Option<(String, String)>,
    answers: Option<String>,
    #[serde(default)]
    hides: Vec<String>,
    reaches: Option<String>,
    logs: Option<String>,
    #[serde(default)]
    unanswered: bool,
    harmless: Option<bool>,
}

impl TryFrom<Written> for Expect {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let Written { load, ends, answers, hides, reaches, logs, unanswered, harmless } = written;
        match (load, ends, answers, harmless) {
            (Some((phase, words)), None, None, None) => Ok(Self::Load(phase, words)),
            (None, Some((reason, words)), None, None) => Ok(Self::Ends(reason, words)),
            (None, None, Some(answers), None) => Ok(Self::Answers { answers, hides, reaches, logs, unanswered }),
            (None, None, None, Some(true)) => Ok(Self::Harmless),
            _ => Err("exactly one of load, ends, answers and harmless: true".to_owned()),
        }
    }
}

impl Expect {
    fn seen(&self) -> String {
        let code = |words: &str| if words.is_empty() { String::new() } else { format!(": `{words}`") };
        match self {
            Self::Load(phase, words) => format!("{phase}{}", code(words)),
            Self::Ends(reason, words) => format!("{reason}{}", code(words)),
            Self::Answers { logs: Some(words), .. } => format!("the log{}", code(words)),
            Self::Answers { answers, hides, .. } if !hides.is_empty() => {
                format!("an answer{}, without `{}`, which the log may say", code(answers), hides.join("`, `"))
            }
            Self::Answers { answers, .. } => format!("an answer{}", code(answers)),
            Self::Harmless => "nothing".to_owned(),
        }
    }
}

impl Guest {
    /// The component.
    pub fn wasm(&self) -> Vec<u8> {
        match self {
            Self::Wat(parts) => parts.crash().wasm(),
            Self::Component(text) => wat::parse_str(text).unwrap(),
            Self::Bytes(name) => bombs::make(name),
            Self::Imports { .. } => imports(),
            Self::Ordinary(..) => ordinary(),
        }
    }

    /// What it is asked to reconcile: the controller and the object.
    pub fn request(&self) -> (String, Option<String>) {
        match self {
            Self::Imports { command, argument } => (command.clone(), Some(argument.to_string())),
            Self::Ordinary(attempt, argument) => (attempt.clone(), Some(Value::from(argument.as_str()).to_string())),
            _ => ("any".to_owned(), None),
        }
    }
}

impl Parts {
    fn crash(&self) -> Crash {
        // For the life of the test, as the template's parts are otherwise written in its source.
        let text = |text: &String| -> &'static str { text.clone().leak() };
        let template = Crash::default();
        Crash {
            version: self.version.as_ref().map_or(template.version, text),
            memory: self.memory.as_ref().map_or(template.memory, text),
            manifest: self.manifest.clone().unwrap_or(template.manifest),
            start: text(&self.start),
            on_manifest: text(&self.on_manifest),
            on_reconcile: text(&self.on_reconcile),
            more_imports: text(&self.more_imports),
            more_core_imports: text(&self.more_core_imports),
            more_instances: text(&self.more_instances),
            more_after: text(&self.more_after),
        }
    }
}
