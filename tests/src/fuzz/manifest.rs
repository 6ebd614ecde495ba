//! What a plugin says of itself.

use std::collections::BTreeSet;

use operetta_core::{
    manifest::Manifest,
    route::{Router, Source, sources},
};

/// A manifest that is taken says the same when it is written and read again, names no controller twice, has its primary first among what it watches, and the document that is
/// generated from it grants what it asks for and nothing else.
pub fn parse(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let manifest = match Manifest::parse(text) {
        Ok(manifest) => manifest,
        Err(error) => {
            let error = error.to_string();
            assert!(error.len() < 1_000 && !error.contains(char::is_control), "{} bytes: {error:?}", error.len());
            return;
        }
    };
    let Ok(rendered) = manifest.render() else { return };
    let again = Manifest::parse(&rendered).expect("a manifest that was written can be read");
    assert_eq!(manifest.difference(&again), None, "it says something else when it is read again");
    assert_eq!(again.render().as_deref(), Ok(&*rendered));

    let names: BTreeSet<_> = manifest.controllers.iter().map(|controller| &controller.name).collect();
    assert_eq!(names.len(), manifest.controllers.len(), "a name twice");
    for controller in &manifest.controllers {
        let sources = sources(controller);
        assert_eq!(sources.first().map(|(kind, _)| kind), Some(&controller.primary));
        assert!(sources.iter().all(|(_, ways)| !ways.is_empty()));
        assert_eq!(sources.iter().flat_map(|(_, ways)| ways).filter(|way| **way == Source::Primary).count(), 1);
        let _ = Router::new(controller);
        assert_eq!(manifest.controller(&controller.name), Some(controller));
    }
    granted(&manifest);
}

fn granted(manifest: &Manifest) {
    let yaml = operetta_api::render(&manifest.name, manifest).expect("a document can be written");
    // What it gives as an example may be no address; an administrator sees that when the file is read.
    let Ok(plugin) = operetta_api::parse(&manifest.name, &yaml) else { return };
    let (policy, asked) = (plugin.spec.policy(), &manifest.requests);
    assert_eq!(*policy.grants.rules, *asked.rules, "other rules than it asked for");
    assert_eq!(policy.grants.events, asked.events);
    assert_eq!(policy.grants.channels, asked.channels.iter().map(|c| c.name.clone()).collect());
    assert_eq!(policy.grants.databases, asked.databases.iter().map(|d| d.name.clone()).collect());
    let settings = asked.settings.iter().filter_map(|s| Some((s.name.clone(), s.default.clone()?)));
    assert_eq!(policy.settings, settings.collect(), "other settings than it gives");
}
