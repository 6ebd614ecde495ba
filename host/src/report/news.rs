//! What is worth an event: the difference between two looks.

use operetta_core::port::Severity;

use super::Seen;

/// The events of what changed since `before`; none before the first look.
pub(super) fn of(before: Option<&Seen>, now: &Seen) -> Vec<(Severity, &'static str, String)> {
    let mut news = Vec::new();
    let was = before.map(|before| &before.status);
    if let Some(problem) = &now.status.problem
        && was.and_then(|was| was.problem.as_ref()) != Some(problem)
    {
        news.push((Severity::Warning, problem.word(), problem.to_string()));
    }
    let running = |status: &crate::plugin::Status| status.running.clone();
    if let Some((version, digest)) = running(&now.status)
        && was.and_then(running).as_ref() != Some(&(version.clone(), digest))
    {
        let (reason, how) = match was.and_then(running) {
            Some((old, _)) => ("Exchanged", format!(" took over from version {old}")),
            None => ("Loaded", " runs".to_owned()),
        };
        news.push((Severity::Normal, reason, format!("version {version} ({}){how}", digest.short())));
    }
    if now.status.suspended.is_some() && was.is_none_or(|was| was.suspended.is_none()) {
        news.push((Severity::Normal, "Suspended", "spec.suspend is true".to_owned()));
    }
    if let Some(leaving) = &now.status.leaving
        && now.census.held > 0
        && was.and_then(|was| was.leaving.as_ref()).map(|leaving| leaving.policy) != Some(leaving.policy)
    {
        let text = crate::plugin::explain(leaving.policy, &now.census, false);
        news.push((Severity::Warning, "FinalizersHeld", text));
    }
    if let Some(why) = &now.trapping
        && before.is_none_or(|before| before.trapping.is_none())
    {
        news.push((Severity::Warning, "Degraded", why.clone()));
    }
    match (before.and_then(|before| before.parked.as_ref()), &now.parked) {
        (None, Some(why)) => news.push((Severity::Warning, "Parked", why.clone())),
        (Some(_), None) => news.push((Severity::Normal, "Recovered", "it is no longer parked".to_owned())),
        _ => {}
    }
    if let Some(what) = &now.looping
        && before.is_none_or(|before| before.looping.is_none())
    {
        news.push((Severity::Warning, "Looping", what.clone()));
    }
    for denial in &now.denied {
        if before.is_none_or(|before| !before.denied.contains(denial)) {
            news.push((Severity::Warning, "Denied", denial.to_string()));
        }
    }
    // The API server takes notes of less than 1 KiB.
    for (_, _, note) in &mut news {
        let end = (0..=1_000).rev().find(|end| note.is_char_boundary(*end)).unwrap_or_default();
        note.truncate(end);
    }
    news
}
