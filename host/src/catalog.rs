//! What the host is to run: the files of the plugin directory and the Plugins of the cluster, made one list by name.
//!
//! **Where a name has both, the Plugin of the cluster holds** and the document in the directory is not used: whoever looks at the cluster sees what runs. Such an object may take its
//! component from the directory, so a component without a document is an error only while no object refers to it. Nothing is told before the cluster's Plugins are known, so that no
//! plugin starts with one document only to go on with another.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    path::PathBuf,
};

use bytes::Bytes;
use operetta_api::ConfigMapSource;
use operetta_cluster::plugins::{FINALIZER, PluginChange};
use operetta_core::name::PluginName;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::directory::{self, Directory};

/// Where plugins come from.
#[derive(Debug, clap::Args)]
pub struct CatalogArgs {
    /// The directory with NAME.wasm and NAME.yaml of each plugin; only the Plugins of the cluster run without it
    #[arg(long, value_name = "DIR")]
    pub plugin_dir: Option<PathBuf>,
    /// Of the Plugins of the cluster, run only those with these labels, as in `kubectl -l`; all unless told
    #[arg(long, value_name = "LABELS")]
    pub plugin_selector: Option<String>,
}

/// What is to run under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A Plugin document, and where its component is.
    Present {
        /// The component.
        wasm: Wasm,
        /// The document.
        yaml: String,
        /// The object that the document is of; none for a file.
        object: Option<Object>,
    },
    /// A file cannot be read, and no document either; the text says which, and what to do.
    Incomplete(String),
    /// A component without a document that would grant it anything; the text says what to do.
    WithoutDocument(String),
    /// Nothing any more.
    Gone,
}

/// Where a component is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wasm {
    /// A file of the plugin directory, read.
    File {
        /// Its name.
        name: String,
        /// What is in it.
        bytes: Bytes,
    },
    /// ConfigMaps of the host's namespace, yet to be read.
    ConfigMap(ConfigMapSource),
    /// A file that is not there or cannot be read; the text says why and what to do.
    Missing(String),
}

impl fmt::Display for Wasm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, .. } => f.write_str(name),
            Self::ConfigMap(source) => write!(f, "the component in ConfigMap {}", source.name),
            Self::Missing(_) => f.write_str("the component"),
        }
    }
}

/// A Plugin of the cluster: which incarnation of it, and which of its specs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Which incarnation.
    pub uid: String,
    /// Of the spec.
    pub generation: i64,
    /// It was deleted and waits for the host.
    pub deleting: bool,
    /// A document of the plugin directory has the same name and is not used.
    pub shadows: bool,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// This is to run under this name now.
    Found(PluginName, Entry),
    /// All that was there at the start has been told. Comes once.
    AllTold,
}

/// Merges the sources.
pub struct Catalog {
    directory: Option<Directory>,
    objects: mpsc::UnboundedReceiver<PluginChange>,
    files: BTreeMap<PluginName, directory::Entry>,
    plugins: BTreeMap<PluginName, Value>,
    told: BTreeMap<PluginName, Entry>,
    news: VecDeque<News>,
    /// The cluster's Plugins are known, as far as they can be.
    synced: bool,
    /// The end of what the cluster has to tell; it is over when the host stops.
    ended: bool,
}

impl Catalog {
    /// Of a directory and the changes of the cluster's Plugins.
    pub fn new(directory: Option<Directory>, objects: mpsc::UnboundedReceiver<PluginChange>) -> Self {
        Self {
            directory,
            objects,
            files: BTreeMap::new(),
            plugins: BTreeMap::new(),
            told: BTreeMap::new(),
            news: VecDeque::new(),
            synced: false,
            ended: false,
        }
    }

    /// The next change. Cancel-safe.
    pub async fn next(&mut self) -> News {
        loop {
            if let Some(news) = self.news.pop_front() {
                return news;
            }
            let file = async {
                match &mut self.directory {
                    Some(directory) => directory.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                found = file => self.heed_file(found),
                change = self.objects.recv(), if !self.ended => self.heed_object(change),
            }
        }
    }

    fn heed_file(&mut self, found: directory::Found) {
        if found.entry == directory::Entry::Gone {
            self.files.remove(&found.name);
        } else {
            self.files.insert(found.name.clone(), found.entry);
        }
        // Plugins of other names may take their component from this file.
        let mut concerned: BTreeSet<_> = self.plugins.keys().cloned().collect();
        concerned.insert(found.name);
        self.tell(concerned);
    }

    fn heed_object(&mut self, change: Option<PluginChange>) {
        match change {
            Some(PluginChange::Is(object)) => {
                let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                match PluginName::parse(name) {
                    Ok(name) => {
                        let before = self.plugins.insert(name.clone(), object);
                        let files = [before.as_ref(), self.plugins.get(&name)]
                            .map(|object| file_of(object?, &name))
                            .into_iter()
                            .flatten();
                        let mut concerned: BTreeSet<_> = files.filter_map(|file| stem(&file)).collect();
                        concerned.insert(name);
                        self.tell(concerned);
                    }
                    // The kind's own schema refuses such a name.
                    Err(error) => tracing::error!(%error, "a Plugin of the cluster does not run"),
                }
            }
            Some(PluginChange::Gone(name)) => {
                let Ok(name) = PluginName::parse(&name) else { return };
                let file = self.plugins.remove(&name).and_then(|object| stem(&file_of(&object, &name)?));
                self.tell([Some(name), file].into_iter().flatten().collect());
            }
            Some(PluginChange::Synced) => {
                self.synced = true;
                // What lies in the directory already is read without waiting.
                while let Some(found) = self.directory.as_mut().and_then(Directory::try_next) {
                    self.heed_file(found);
                }
                self.tell(self.files.keys().chain(self.plugins.keys()).cloned().collect());
                self.news.push_back(News::AllTold);
            }
            None => self.ended = true,
        }
    }

    /// Tells what is different now.
    fn tell(&mut self, names: BTreeSet<PluginName>) {
        if !self.synced {
            return;
        }
        for name in names {
            let now = self.merged(&name);
            if self.told.get(&name).unwrap_or(&Entry::Gone) == &now {
                continue;
            }
            if now == Entry::Gone {
                self.told.remove(&name);
            } else {
                self.told.insert(name.clone(), now.clone());
            }
            self.news.push_back(News::Found(name, now));
        }
    }

    fn merged(&self, name: &PluginName) -> Entry {
        let file = self.files.get(name);
        if let Some(plugin) = self.plugins.get(name) {
            let deleting = plugin.pointer("/metadata/deletionTimestamp").is_some_and(|t| !t.is_null());
            let finalizers = plugin.pointer("/metadata/finalizers").and_then(Value::as_array);
            let held = finalizers.into_iter().flatten().any(|f| f == FINALIZER);
            if !deleting || held {
                let object = Object {
                    uid: plugin.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default().to_owned(),
                    generation: plugin.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default(),
                    deleting,
                    shadows: matches!(
                        file,
                        Some(directory::Entry::Present { .. } | directory::Entry::Incomplete { yaml: Some(_), .. })
                    ),
                };
                // The spec alone, so that what is written into the status changes nothing.
                let document = json!({
                    "apiVersion": plugin.get("apiVersion"), "kind": plugin.get("kind"),
                    "metadata": {"name": name.as_str()}, "spec": plugin.get("spec"),
                });
                let wasm = self.wasm(plugin, name);
                return Entry::Present { wasm, yaml: document.to_string(), object: Some(object) };
            }
        }
        match file {
            None | Some(directory::Entry::Gone) => Entry::Gone,
            Some(directory::Entry::Present { wasm, yaml }) => Entry::Present {
                wasm: Wasm::File { name: format!("{name}.wasm"), bytes: wasm.clone() },
                yaml: yaml.clone(),
                object: None,
            },
            // What the document takes away is gone, whatever lies beside it.
            Some(directory::Entry::Incomplete { why, yaml: Some(yaml) }) => {
                Entry::Present { wasm: Wasm::Missing(why.clone()), yaml: yaml.clone(), object: None }
            }
            Some(directory::Entry::Incomplete { why, yaml: None }) => Entry::Incomplete(why.clone()),
            Some(directory::Entry::WithoutDocument { why, .. }) => {
                let own = format!("{name}.wasm");
                let used = self.plugins.iter().any(|(plugin, object)| file_of(object, plugin).as_ref() == Some(&own));
                if used { Entry::Gone } else { Entry::WithoutDocument(why.clone()) }
            }
        }
    }

    fn wasm(&self, plugin: &Value, name: &PluginName) -> Wasm {
        if let Some(source) = plugin.pointer("/spec/source/configMap") {
            return match serde_json::from_value(source.clone()) {
                Ok(source) => Wasm::ConfigMap(source),
                Err(error) => Wasm::Missing(format!("spec.source.configMap: {error}")),
            };
        }
        let file = file_of(plugin, name).unwrap_or_default();
        if self.directory.is_none() {
            return Wasm::Missing(format!(
                "the component is to come from the file {file}, and this host has no plugin directory; name a configMap in spec.source, or start the host with --plugin-dir"
            ));
        }
        match stem(&file).and_then(|stem| self.files.get(&stem)) {
            Some(directory::Entry::Present { wasm, .. } | directory::Entry::WithoutDocument { wasm, .. }) => {
                Wasm::File { name: file, bytes: wasm.clone() }
            }
            Some(directory::Entry::Incomplete { why, .. }) => Wasm::Missing(why.clone()),
            None | Some(directory::Entry::Gone) => Wasm::Missing(format!(
                "the plugin directory has no file {file}; copy the component there, or correct spec.source"
            )),
        }
    }
}

/// The file that a Plugin takes its component from.
fn file_of(plugin: &Value, name: &PluginName) -> Option<String> {
    match plugin.pointer("/spec/source") {
        Some(source) if source.get("configMap").is_some() => None,
        Some(source) => Some(source.get("file").and_then(Value::as_str).unwrap_or_default().to_owned()),
        None => Some(format!("{name}.wasm")),
    }
}

/// Under which name the directory knows a file.
fn stem(file: &str) -> Option<PluginName> {
    PluginName::parse(file.strip_suffix(".wasm")?).ok()
}

#[cfg(test)]
mod tests;
