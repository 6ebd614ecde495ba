//! Sandboxes, guests and calls.

use std::{
    path::Path,
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use arc_swap::ArcSwap;
use operetta_core::{
    effect::{Effects, Policy, Ports},
    grant::{Denial, Grants, Rule},
    limit::{Limit, Limits},
    looping::{Guard, Step},
    name::{ChannelName, ControllerName, DatabaseName, PluginName},
    port::{Caller, Channels, Kubernetes, database::Databases},
    reconcile::{Cause, Failure, Outcome, Reconciler, Request},
    resource::ObjectKey,
};
use operetta_sandbox::{CompileLimits, Component, LoadError, Sandbox, SandboxConfig, Usage};
use operetta_tests::{components::Workspace, progress::Progress};

use crate::world::World;

/// The manifest of the guest that is WAT.
pub const MANIFEST: &str = r#"{"manifestVersion":1,"name":"crash","version":"1","controllers":[{"name":"any","for":{"group":"x.example.com","version":"v1","resource":"things"}}]}"#;

/// A sandbox of its own in a folder of its own.
pub fn config(directory: &Path) -> SandboxConfig {
    let compiler = vec![env!("CARGO_BIN_EXE_compile-component").into()];
    SandboxConfig { concurrency: 8, ..SandboxConfig::new(directory.join("cache"), directory.join("key"), compiler) }
}

/// A sandbox of its own whose cache outlives the test.
pub fn sandbox() -> Sandbox {
    sandbox_that_compiles_within(CompileLimits::default())
}

/// The same with these limits.
pub fn sandbox_that_compiles_within(compile_limits: CompileLimits) -> Sandbox {
    let config = config(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("sandbox"));
    Sandbox::new(SandboxConfig { compile_limits, ..config }).unwrap()
}

/// The Rust guest that calls every import.
pub fn imports() -> Vec<u8> {
    static GUEST: LazyLock<Vec<u8>> =
        LazyLock::new(|| Workspace::locate().unwrap().guest("imports", &Progress::stderr()).unwrap());
    GUEST.clone()
}

/// The Rust guest for `wasm32-wasip2`, which uses nothing but its standard library.
pub fn ordinary() -> Vec<u8> {
    static GUEST: LazyLock<Vec<u8>> =
        LazyLock::new(|| Workspace::locate().unwrap().ordinary_guest("ordinary", &Progress::stderr()).unwrap());
    GUEST.clone()
}

/// The guest that is WAT, before it is assembled.
#[derive(Clone)]
pub struct Crash {
    pub version: &'static str,
    pub memory: &'static str,
    pub manifest: String,
    pub start: &'static str,
    pub on_manifest: &'static str,
    pub on_reconcile: &'static str,
    pub more_imports: &'static str,
    pub more_core_imports: &'static str,
    pub more_instances: &'static str,
    pub more_after: &'static str,
}

impl Default for Crash {
    fn default() -> Self {
        Self {
            version: "0.1.0",
            memory: "1",
            manifest: MANIFEST.into(),
            start: "",
            on_manifest: "",
            more_imports: "",
            more_core_imports: "",
            more_instances: "",
            more_after: "",
            // One component that ends badly in many ways, chosen by the attempt.
            on_reconcile: r"
                (if (i32.eq (local.get $attempt) (i32.const 1)) (then unreachable))
                (if (i32.eq (local.get $attempt) (i32.const 2)) (then (loop $forever (br $forever))))
                (if (i32.eq (local.get $attempt) (i32.const 3)) (then
                    (loop $more (br_if $more (i32.ge_s (memory.grow (i32.const 16)) (i32.const 0)))) unreachable))
                (if (i32.eq (local.get $attempt) (i32.const 4)) (then (drop (call $recurse (i32.const 0)))))
                (if (i32.eq (local.get $attempt) (i32.const 5)) (then (drop (i32.load (i32.const -8)))))
                (if (i32.eq (local.get $attempt) (i32.const 6)) (then (drop (i32.div_u (i32.const 1) (i32.const 0)))))
                (if (i32.eq (local.get $attempt) (i32.const 7)) (then
                    (loop $more (br_if $more (i32.ge_s (table.grow $table (ref.null func) (i32.const 10000)) (i32.const 0))))))
                (if (i32.eq (local.get $attempt) (i32.const 8)) (then (return (i32.const -4))))
                (if (i32.eq (local.get $attempt) (i32.const 9)) (then
                    (i32.store8 (i32.const 0) (i32.const 1)) (i32.store8 (i32.const 8) (i32.const 0))
                    (i32.store (i32.const 12) (i32.const 0)) (i32.store (i32.const 16) (i32.const 0x7fffffff)) (return (i32.const 0))))
                (if (i32.eq (local.get $attempt) (i32.const 10)) (then (i32.store8 (i32.const 0) (i32.const 9)) (return (i32.const 0))))",
        }
    }
}

impl Crash {
    pub fn wasm(&self) -> Vec<u8> {
        let text = include_str!("../../guests/crash.wat");
        let wat = text.split_once("\n(component").map(|(_, rest)| format!("(component{rest}")).unwrap();
        let wat = wat
            .replace("MORE-IMPORTS", self.more_imports)
            .replace("MORE-CORE-IMPORTS", self.more_core_imports)
            .replace("MORE-INSTANCES", self.more_instances)
            .replace("MORE-AFTER", self.more_after)
            .replace("ON-MANIFEST", self.on_manifest)
            .replace("ON-RECONCILE", self.on_reconcile)
            .replace("(func $start START)", &format!("(func $start {})", self.start))
            .replace("VERSION", self.version)
            .replace("(export \"memory\") MEMORY", &format!("(export \"memory\") {}", self.memory))
            .replace("LENGTH", &self.manifest.len().to_string())
            .replace("\"MANIFEST\"", &format!("\"{}\"", self.manifest.replace('\\', "\\\\").replace('"', "\\\"")));
        wat::parse_str(wat).unwrap()
    }
}

/// One plugin with its world and its limits.
pub struct Plugin {
    pub component: Arc<Component>,
    pub world: Arc<World>,
    /// The world, unless a test puts what is real there.
    pub kubernetes: Arc<dyn Kubernetes>,
    pub channels: Arc<dyn Channels>,
    pub databases: Arc<dyn Databases>,
    pub policy: Arc<ArcSwap<Policy>>,
    pub usage: Arc<Mutex<Vec<Usage>>>,
    /// What grants the denials lacked, as the metric says it.
    pub denied: Arc<Mutex<Vec<&'static str>>>,
    /// The limits that were met on the way to an effect.
    pub exceeded: Arc<Mutex<Vec<Limit>>>,
    /// What the loop guard learns of the last reconcile.
    pub steps: Arc<Mutex<Vec<Step>>>,
}

impl Plugin {
    pub async fn load(sandbox: &Sandbox, wasm: Vec<u8>) -> Result<Self, LoadError> {
        Ok(Self::of(sandbox.load(wasm).await?))
    }

    pub fn of(component: Arc<Component>) -> Self {
        let rule = |resources: &[&str]| Rule {
            api_groups: vec!["*".into()],
            resources: resources.iter().map(|&r| r.into()).collect(),
            verbs: vec!["*".into()],
            ..Rule::default()
        };
        let grants = Grants {
            rules: vec![rule(&["*"])].into(),
            channels: [ChannelName::parse("demo").unwrap()].into(),
            databases: [DatabaseName::parse("demo").unwrap()].into(),
            events: true,
            ..Grants::default()
        };
        let limits = Limits {
            deadline: Duration::from_secs(20),
            cpu: Duration::from_secs(5),
            message: 1 << 20,
            memory: 32 << 20,
            ..Limits::default()
        };
        let policy = Policy { grants, limits, settings: [("colour".into(), "red".into())].into(), ..Policy::default() };
        let policy = Arc::new(ArcSwap::from_pointee(policy));
        let world = Arc::<World>::default();
        let (kubernetes, channels, databases) = (world.clone(), world.clone(), world.clone());
        let (usage, denied, exceeded, steps) = Default::default();
        Self { component, world, kubernetes, channels, databases, policy, usage, denied, exceeded, steps }
    }

    pub fn limit(&self, change: impl FnOnce(&mut Policy)) {
        let mut policy = Policy::clone(&self.policy.load());
        change(&mut policy);
        self.policy.store(Arc::new(policy));
    }

    pub fn effects(&self) -> Effects {
        let caller =
            Caller { plugin: PluginName::parse("demo").unwrap(), controller: ControllerName::parse("any").unwrap() };
        let ports = Ports {
            kubernetes: self.kubernetes.clone(),
            channels: self.channels.clone(),
            databases: self.databases.clone(),
            log: self.world.clone(),
            denials: {
                let denied = self.denied.clone();
                Arc::new(move |denial: &Denial| denied.lock().unwrap().push(denial.grant()))
            },
            exceeded: {
                let exceeded = self.exceeded.clone();
                Arc::new(move |limit| exceeded.lock().unwrap().push(limit))
            },
            rates: Arc::default(),
        };
        Effects::new(caller, self.policy.clone(), ports)
    }

    /// Runs one reconcile.
    pub async fn call(&self, controller: &str, object: Option<&str>, attempt: u32) -> Result<Outcome, Failure> {
        let request = Request {
            controller: ControllerName::parse(controller).unwrap(),
            key: ObjectKey::parse(Some("default"), "thing").unwrap(),
            object: object.map(Into::into),
            attempt,
            cause: Cause::Changed,
        };
        let usage = self.usage.clone();
        let observe = Arc::new(move |_: &Caller, used: &Usage| usage.lock().unwrap().push(*used));
        let guard = Guard::new(request.controller.clone(), Arc::default());
        let effects = Arc::new(self.effects().on(guard.begin(&request.key)));
        let ended = self.component.operator(observe).reconcile(request, Arc::clone(&effects)).await;
        *self.steps.lock().unwrap() = effects.steps();
        ended
    }

    /// What the Rust guest says of one command.
    pub async fn ask(&self, command: &str, argument: &serde_json::Value) -> String {
        match self.call(command, Some(&argument.to_string()), 0).await {
            Err(Failure::Terminal(answer)) => answer,
            other => panic!("{command}: {other:?}"),
        }
    }
}
