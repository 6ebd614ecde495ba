//! What an administrator writes, or somebody who may write where administrators do.

use operetta_core::{
    limit::{MOST_ROWS, MOST_TABLE_ELEMENTS},
    name::PluginName,
};

/// A Plugin document that is taken says the same when it is written and read again; its file lies in the directory, its credentials travel over TLS only, and its limits are limits.
pub fn parse(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let name = PluginName::parse("fuzz").unwrap();
    let plugin = match operetta_api::parse(&name, text) {
        Ok(plugin) => plugin,
        Err(error) => {
            let error = error.to_string();
            let strange = error.contains(|c: char| c.is_control() && c != '\n');
            assert!(error.len() < 2_000 && !strange, "{} bytes: {error:?}", error.len());
            return;
        }
    };
    let written = serde_saphyr::to_string(&plugin).expect("a document can be written");
    let again =
        operetta_api::parse(&name, &written).unwrap_or_else(|error| panic!("{error}, in what was written:\n{written}"));
    assert_eq!(plugin.spec, again.spec, "it says something else when it is read again");

    let spec = &plugin.spec;
    if let Some(file) = spec.source.as_ref().and_then(|source| source.file.as_ref()) {
        assert_eq!(std::path::Path::new(file).components().count(), 1, "{file:?} is a path");
        assert!(!file.contains(['/', '\\', '\0']) && !file.starts_with('.'), "{file:?}");
    }
    for channel in &spec.grants.channels {
        let secret = channel.token_from.is_some() || channel.certificate_from.is_some();
        assert!(!secret || channel.endpoint.starts_with("https://"), "credentials in the clear: {channel:?}");
    }
    for database in &spec.grants.databases {
        database.address().expect("a database has an address");
    }
    spec.account(&name).expect("it has an account");
    let limits = spec.policy().limits;
    assert!((1..=1 << 30).contains(&limits.memory) && (1..=MOST_TABLE_ELEMENTS).contains(&limits.tables), "{limits:?}");
    assert!((1..=MOST_ROWS).contains(&limits.rows) && limits.message <= 64 << 20, "{limits:?}");
    assert!(limits.concurrency > 0 && limits.streams > 0 && limits.log_line >= 80, "{limits:?}");
    assert!(!limits.deadline.is_zero() && !limits.cpu.is_zero(), "{limits:?}");
}
