//! A plugin directory, and Plugin documents with changes: what an administrator does with an editor and `cp`.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::components::{Component, replace};

/// A directory that a host watches.
#[derive(Debug)]
pub struct PluginDir(PathBuf);

impl PluginDir {
    /// Makes it.
    pub fn create(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path.to_owned()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The file of a plugin's component.
    pub fn wasm(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.wasm"))
    }

    /// The file of a plugin's document.
    pub fn yaml(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.yaml"))
    }

    /// Puts a plugin in: the document first, so that the component finds it there.
    pub fn put(&self, name: &str, wasm: &[u8], document: &Document) -> Result<()> {
        self.put_document(name, document)?;
        self.put_wasm(name, wasm)
    }

    /// Puts a component in place in one step, as `install` or a rename does.
    pub fn put_wasm(&self, name: &str, wasm: &[u8]) -> Result<()> {
        replace(&self.wasm(name), wasm).map(drop)
    }

    /// Overwrites a component where it lies, as plain `cp` does.
    pub fn copy_wasm(&self, name: &str, wasm: &[u8]) -> Result<()> {
        fs::write(self.wasm(name), wasm).with_context(|| format!("write {}", self.wasm(name).display()))
    }

    /// Puts a document in place in one step.
    pub fn put_document(&self, name: &str, document: &Document) -> Result<()> {
        replace(&self.yaml(name), document.clone().named(name).to_text().as_bytes()).map(drop)
    }

    /// Removes both files of a plugin, as far as they are there.
    pub fn remove(&self, name: &str) -> Result<()> {
        for path in [self.wasm(name), self.yaml(name)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("remove {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A Plugin document.
#[derive(Debug, Clone)]
pub struct Document(Value);

impl Document {
    /// The document that was written for a component.
    pub fn of(component: &Component) -> Result<Self> {
        let path = component.document.display();
        let text = fs::read_to_string(&component.document).with_context(|| format!("read {path}"))?;
        serde_saphyr::from_str(&text).map(Self).with_context(|| format!("understand {path}"))
    }

    /// Another endpoint for a channel.
    pub fn endpoint(mut self, channel: &str, endpoint: &str) -> Self {
        let channels = self.0.pointer_mut("/spec/grants/channels").and_then(Value::as_array_mut);
        for granted in channels.into_iter().flatten() {
            if granted.get("name").and_then(Value::as_str) == Some(channel) {
                set(granted, &["endpoint"], json!(endpoint));
            }
        }
        self
    }

    /// A limit, as it is called in the document.
    pub fn limit(mut self, name: &str, value: u32) -> Self {
        set(&mut self.0, &["spec", "limits", name], json!(value));
        self
    }

    /// A setting.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        set(&mut self.0, &["spec", "settings", name], json!(value));
        self
    }

    /// Any field, by the names that lead to it.
    pub fn field(mut self, path: &[&str], value: Value) -> Self {
        set(&mut self.0, path, value);
        self
    }

    /// Under another name, acting as the account that was made for the name before.
    pub fn named(mut self, name: &str) -> Self {
        let before = self.0.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        if before != name && self.0.pointer("/spec/serviceAccount").is_none() {
            set(&mut self.0, &["spec", "serviceAccount", "name"], json!(before));
        }
        set(&mut self.0, &["metadata", "name"], json!(name));
        self
    }

    /// As a file holds it. JSON is YAML.
    pub fn to_text(&self) -> String {
        format!("{:#}\n", self.0)
    }
}

/// Sets what lies at the end of a path of names, and makes what is missing on the way.
fn set(mut at: &mut Value, path: &[&str], value: Value) {
    for name in path {
        if !at.is_object() {
            *at = json!({});
        }
        let Some(object) = at.as_object_mut() else { return };
        at = object.entry(*name).or_insert(Value::Null);
    }
    *at = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_keeps_its_account_under_another_name() {
        let document = Document(json!({
            "metadata": {"name": "a"},
            "spec": {"grants": {"channels": [{"name": "x", "endpoint": "http://one"}, {"name": "y", "endpoint": "http://two"}]}},
        }));
        let Document(changed) =
            document.endpoint("x", "http://new").limit("cpuSeconds", 1).setting("s", "t").named("b");
        assert_eq!(changed.pointer("/metadata/name"), Some(&json!("b")));
        assert_eq!(changed.pointer("/spec/serviceAccount/name"), Some(&json!("a")));
        assert_eq!(changed.pointer("/spec/grants/channels/0/endpoint"), Some(&json!("http://new")));
        assert_eq!(changed.pointer("/spec/grants/channels/1/endpoint"), Some(&json!("http://two")));
        assert_eq!(changed.pointer("/spec/limits/cpuSeconds"), Some(&json!(1)));
        assert_eq!(changed.pointer("/spec/settings/s"), Some(&json!("t")));
    }
}
